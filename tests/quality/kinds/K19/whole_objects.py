"""Model and optimizer are pickled as objects; a later version of the class has one attribute more."""

import argparse
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--version", type=int, default=1)
parser.add_argument("--with-default", action="store_true", help="what older objects lack has a default")
args = parser.parse_args()


class SignSGD(torch.optim.Optimizer):
    """Of the sign of the averaged gradient."""

    def __init__(self, params, lr, beta):
        super().__init__(params, {"lr": lr, "beta": beta})
        if args.version > 1:
            self.maximize = False

    def __setstate__(self, state):
        super().__setstate__(state)
        if args.with_default:
            self.__dict__.setdefault("maximize", False)

    @torch.no_grad()
    def step(self, closure=None):
        sign = 1.0 if args.version > 1 and self.maximize else -1.0
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.mul_(group["beta"]).add_(parameter.grad, alpha=1 - group["beta"])
                parameter.add_(average.sign(), alpha=sign * group["lr"])


torch.manual_seed(33)
file = args.out / "objects.pkl"
if file.exists():
    model, optimizer, step = torch.load(file, weights_only=False)
else:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    optimizer, step = SignSGD(model.parameters(), 1e-2, 0.9), 0
while step < 12:
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
    loss = (model(inputs) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        torch.save((model, optimizer, step), file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)
