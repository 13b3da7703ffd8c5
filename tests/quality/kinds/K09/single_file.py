"""One file holds everything and is written again and again under its own name."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--atomic", action="store_true", help="write beside it, then rename")
args = parser.parse_args()
path = os.path.join(args.out, "ckpt.pt")

torch.manual_seed(0)
data, target = torch.randn(96, 8), torch.randn(96, 4)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def save(step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    if args.atomic:
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
    else:
        torch.save(state, path)


start = 0
if os.path.exists(path):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["step"]
    print(f"resumed at step {start}")

for step in range(start, 20):
    rows = slice(step % 12 * 8, step % 12 * 8 + 8)
    loss = nn.functional.mse_loss(model(data[rows]), target[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 5 == 0:
        save(step + 1)
