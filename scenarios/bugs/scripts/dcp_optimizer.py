"""A training script as people write it: the state of the model and of the optimizer, saved and loaded by torch.distributed.checkpoint."""

import argparse
import os

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(96, 16)
targets = torch.sin(inputs.roll(1, 1)) * 2

model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)


def state():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


start = 0
latest = os.path.join(args.out, "latest")
if os.path.exists(latest):
    with open(latest) as file:
        name = file.read()
    loaded = state()
    dcp.load(loaded, checkpoint_id=os.path.join(args.out, name), no_dist=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    start = int(name.removeprefix("step-"))

for step in range(start, args.steps):
    batch = slice(8 * step, 8 * step + 8)
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.9f}", flush=True)
    if (step + 1) % 4 == 0:
        name = f"step-{step + 1}"
        dcp.save(state(), checkpoint_id=os.path.join(args.out, name), no_dist=True)
        with open(latest + ".tmp", "w") as file:
            file.write(name)
        os.replace(latest + ".tmp", latest)
