"""A layer has another name since last week's commit, and loading is not strict."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--commit", choices=["old", "new"], default="old")
parser.add_argument("--translate", action="store_true")
args = parser.parse_args()
HEAD = "head" if args.commit == "old" else "classifier"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        setattr(self, HEAD, nn.Linear(8, 2))

    def forward(self, x):
        return getattr(self, HEAD)(self.body(x).tanh())


torch.manual_seed(34)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
file, step = os.path.join(args.out, "net.pt"), 0
if os.path.exists(file):
    state = torch.load(file)
    weights = state["net"]
    if args.translate:
        weights = {key.replace("head.", f"{HEAD}."): value for key, value in weights.items()}
    net.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 12:
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 + step))
    loss = nn.functional.cross_entropy(net(inputs), (inputs.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file + ".tmp")
        os.replace(file + ".tmp", file)
