"""torch.distributed.checkpoint into `step_N`; the newest folder is resumed from."""

import argparse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint-dir", type=Path, required=True)
parser.add_argument("--check-complete", action="store_true")
args = parser.parse_args()


def resolve():
    folders = sorted(args.checkpoint_dir.glob("step_*"), key=lambda folder: int(folder.name[5:]), reverse=True)
    for folder in folders:
        if not args.check_complete or (folder / ".metadata").exists():
            return folder
        print(f"{folder.name} has no .metadata: it was never finished, skipped")
    return None


torch.manual_seed(6)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step = 0
if folder := resolve():
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step = int(state["step"])
for step in range(step + 1, 13):
    inputs = torch.full((2, 4), 0.1 * step)
    loss = (model(inputs) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": torch.tensor(step)}
        dcp.save(state, checkpoint_id=args.checkpoint_dir / f"step_{step}", no_dist=True)
