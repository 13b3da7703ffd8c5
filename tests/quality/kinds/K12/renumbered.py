"""Weights are numbered by the epochs of this run, the highest number is taken."""

import argparse
import glob
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints_path", required=True)
parser.add_argument("--continue_numbering", action="store_true")
args = parser.parse_args()
prefix = os.path.join(args.checkpoints_path, "weights.")

torch.manual_seed(23)
model = torch.nn.Conv1d(2, 4, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
images = torch.randn(18, 2, 2, 9)
found = sorted(int(path[len(prefix) :]) for path in glob.glob(prefix + "*") if path[len(prefix) :].isdigit())
number, step = 0, 0
if found:
    state = torch.load(f"{prefix}{found[-1]}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    if args.continue_numbering:
        number = found[-1] + 1

while step < 18:
    loss = model(images[step]).relu().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, prefix + "tmp")
        os.replace(prefix + "tmp", f"{prefix}{number}")
        number += 1
