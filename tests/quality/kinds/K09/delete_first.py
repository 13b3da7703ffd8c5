"""Room for one checkpoint only, an `unfinished` mark beside what is being written, and unfinished ones are skipped."""

import argparse
import os
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path, required=True)
parser.add_argument("--delete", choices=["before", "after"], default="before")
args = parser.parse_args()

torch.manual_seed(5)
weight = torch.nn.Parameter(torch.randn(10))
head = torch.nn.Linear(10, 1)
optimizer = torch.optim.Adam([weight, *head.parameters()], lr=1e-2)
step = 0

finished = [file for file in args.dir.glob("last-*.ckpt") if not file.with_suffix(".unfinished").exists()]
for file in sorted(finished, key=lambda file: int(file.stem.split("-")[1]))[-1:]:
    state = torch.load(file)
    weight.data.copy_(state["weight"])
    head.load_state_dict(state["head"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]

while step < 15:
    inputs = torch.sin(torch.arange(10) * (step + 1.0))
    loss = (head(inputs * weight) - 1).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5:
        continue
    file = args.dir / f"last-{step}.ckpt"
    mark = file.with_suffix(".unfinished")
    others = [other for other in args.dir.glob("last-*.ckpt") if other != file]
    if args.delete == "before":
        for other in others:
            other.unlink()
    mark.touch()
    torch.save({"weight": weight.data, "head": head.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
    mark.unlink()
    if args.delete == "after":
        for other in others:
            if os.path.exists(other):
                other.unlink()
