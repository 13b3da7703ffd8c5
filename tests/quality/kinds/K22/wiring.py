"""State outside of parameters: wiring, counters, weights of losses."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--plain", choices=["", "wiring", "counter", "weight"], default="", help="kept outside of the state")
args = parser.parse_args()


class LogicLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        if args.plain == "wiring":
            self.chosen = torch.randperm(size)
        else:
            self.register_buffer("chosen", torch.randperm(size))
        self.weight = nn.Parameter(torch.randn(size, size) / size)
        self.register_buffer("seen", torch.zeros(()), persistent=args.plain != "counter")

    def forward(self, x):
        self.seen += 1
        return x[:, self.chosen] @ self.weight * (1 - torch.exp(-self.seen / 8))


class Memory(nn.Module):
    """A loss whose weight grows while training goes on."""

    def __init__(self):
        super().__init__()
        if args.plain == "weight":
            self.alpha = 0.1
        else:
            self.register_buffer("alpha", torch.tensor(0.1))

    def forward(self, out, x):
        value = (out - x).square().mean() + self.alpha * out.abs().mean()
        self.alpha = self.alpha * 1.2
        return value


file = os.path.join(args.out, "state.pt")
resumed = os.path.exists(file)
torch.manual_seed(1 if resumed else 0)  # everything that matters is loaded
layer, criterion, step = LogicLayer(10), Memory(), 0
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
if resumed:
    state = torch.load(file)
    layer.load_state_dict(state["layer"])
    criterion.load_state_dict(state["criterion"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 20:
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(step))
    loss = criterion(layer(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        parts = {"layer": layer.state_dict(), "criterion": criterion.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**parts, "step": step}, file + ".tmp")
        os.replace(file + ".tmp", file)
