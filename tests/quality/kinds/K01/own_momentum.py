"""An optimizer of one's own, whose momenta lie beside its state, in no state dict."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--forget", action="store_true")
args = parser.parse_args()


class HeavyBall(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.velocity = {}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for place, p in enumerate(group["params"]):
                v = self.velocity.get(place)
                self.velocity[place] = p.grad.clone() if v is None else v.mul_(group["momentum"]).add_(p.grad)
                p.add_(self.velocity[place], alpha=-group["lr"])


torch.manual_seed(2)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = HeavyBall(model.parameters())
data = torch.randn(24, 5, 6)
file, step = os.path.join(args.out, "last.pt"), 0
if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    if not args.forget:
        optimizer.velocity = saved["velocity"]
while step < 24:
    loss = (model(data[step]) - data[step, :, :3]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "velocity": optimizer.velocity, "step": step}
        torch.save(parts, file + ".tmp")
        os.replace(file + ".tmp", file)
