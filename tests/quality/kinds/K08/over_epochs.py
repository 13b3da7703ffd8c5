"""Cycles of accumulation that go over the end of an epoch, where it is saved."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--drop-gradients", action="store_true")
args = parser.parse_args()

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batches = torch.randn(10, 5, 6)
file, epoch, micro = os.path.join(args.out, "epoch.pt"), 0, 0
if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    epoch, micro = saved["epoch"], saved["micro"]
    for p, grad in zip(model.parameters(), saved["gradients"], strict=True):
        p.grad = None if args.drop_gradients else grad
while epoch < 6:
    for batch in batches:
        ((model(batch) - batch[:, :3]).square().mean() / 4).backward()
        micro += 1
        if micro % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    epoch += 1
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "micro": micro}
    parts["gradients"] = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    torch.save(parts, file + ".tmp")
    os.replace(file + ".tmp", file)
