"""The modules are made in another order after the restart, and the optimizer's state is matched by position."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--reorder", action="store_true", help="a later version of the script")
args = parser.parse_args()
path = os.path.join(args.out, "ckpt.pt")

torch.manual_seed(0)
data = torch.randn(96, 8)
target = torch.randn(96, 8)


class Net(nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(8, 8))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


resumed = os.path.exists(path)
model = Net(("second", "first") if args.reorder and resumed else ("first", "second"))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = 0
if resumed:
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["step"]

for step in range(start, 20):
    rows = slice(step % 12 * 8, step % 12 * 8 + 8)
    loss = nn.functional.mse_loss(model(data[rows]), target[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 5 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, path + ".tmp")
        os.replace(path + ".tmp", path)
