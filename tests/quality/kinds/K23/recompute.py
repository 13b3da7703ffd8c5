"""Activations that are computed again in the backward pass: with other masks of dropout, or statistics updated twice."""

import argparse
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--recompute", choices=["no", "same-masks", "other-masks"], default="no")
parser.add_argument("--norm", action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        norm = [nn.BatchNorm1d(16)] if args.norm else []
        self.inner = nn.Sequential(nn.Linear(16, 16), *norm, nn.GELU(), nn.Dropout(0.0 if args.norm else 0.2))

    def forward(self, x):
        if args.recompute == "no":
            return x + self.inner(x)
        return x + checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=args.recompute == "same-masks")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), Block(), Block(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
path, step = os.path.join(args.out, "state.pt"), 0
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 16:
    torch.manual_seed(1000 + step)
    x = torch.randn(12, 6)
    loss = nn.functional.mse_loss(model(x), x[:, :3].abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
