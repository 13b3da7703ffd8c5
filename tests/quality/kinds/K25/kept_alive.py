"""A model of 100 MB, whose checkpoint is loaded before the model is made."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", required=True)
parser.add_argument("--free", action="store_true")
args = parser.parse_args()
file = os.path.join(args.out_dir, "ckpt.pt")

checkpoint = torch.load(file) if os.path.exists(file) else None
torch.manual_seed(35)
model = nn.Sequential(nn.Linear(64, 16384), nn.ReLU(), nn.Linear(16384, 512))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
step = 0
if checkpoint is not None:
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    step = checkpoint["step"]
    if args.free:
        checkpoint = None
while step < 6:
    inputs = torch.randn(2, 64, generator=torch.Generator().manual_seed(step))
    loss = model(inputs).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    step += 1
    if step % 2 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file + ".tmp")
        os.replace(file + ".tmp", file)
