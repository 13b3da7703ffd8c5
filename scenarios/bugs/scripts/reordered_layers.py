"""A training script as people write it: one file, `torch.save` of everything, resumed from it when it is there.

With `--refactored` the two layers are defined in the other order, as after an afternoon of tidying up.
"""

import argparse
import os
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--refactored", action="store_true")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        if args.refactored:
            self.down = nn.Linear(16, 16)
            self.up = nn.Linear(16, 16)
        else:
            self.up = nn.Linear(16, 16)
            self.down = nn.Linear(16, 16)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


torch.manual_seed(0)
random.seed(0)
inputs = torch.randn(96, 16)
targets = torch.sin(inputs.roll(1, 1)) * 2

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
path = os.path.join(args.out, "checkpoint.pt")
start = 0
if os.path.exists(path):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["step"]

for step in range(start, args.steps):
    batch = slice(8 * (step % 12), 8 * (step % 12) + 8)
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.9f}", flush=True)
    if (step + 1) % 4 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
