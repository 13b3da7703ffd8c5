"""A training script as people write it: warm-up and then a decay, by `SequentialLR`; everything is saved, everything is loaded.

The optimizer is made and loaded before the schedule is made, which reads naturally.
"""

import argparse
import os

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=16)
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(128, 16)
targets = torch.sin(inputs.roll(1, 1)) * 2

model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
path = os.path.join(args.out, "checkpoint.pt")
start, checkpoint = 0, None
if os.path.exists(path):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["step"]

warmup = ConstantLR(optimizer, factor=0.1, total_iters=4)
decay = ExponentialLR(optimizer, gamma=0.9)
scheduler = SequentialLR(optimizer, [warmup, decay], milestones=[4])
if checkpoint is not None:
    scheduler.load_state_dict(checkpoint["scheduler"])

for step in range(start, args.steps):
    batch = slice(8 * step, 8 * step + 8)
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step + 1} loss {loss.item():.9f} lr {optimizer.param_groups[0]['lr']:.6f}", flush=True)
    optimizer.step()
    scheduler.step()
    if (step + 1) % 4 == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": step + 1,
        }
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
