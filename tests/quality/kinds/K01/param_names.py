"""The optimizer is given its parameters by name, in whatever order the names come."""

import argparse
import os
import pathlib

import torch

cli = argparse.ArgumentParser()
cli.add_argument("workdir", type=pathlib.Path)
cli.add_argument("--any-order", action="store_true")
opts = cli.parse_args()

g = torch.Generator().manual_seed(4)
xs, ys = torch.randn(60, 12, generator=g), torch.randn(60, 12, generator=g)
torch.manual_seed(4)
net = torch.nn.Sequential()
for name in ("up", "gate", "mix", "down"):
    net.add_module(name, torch.nn.Linear(12, 12, bias=False))
    net.add_module(f"{name}_act", torch.nn.Tanh())

file = pathlib.Path(opts.workdir, "state.pth")
saved = torch.load(file) if file.exists() else None

params = dict(net.named_parameters())
if opts.any_order and saved:
    # "the checkpoint knows which ones are trained"
    params = {name: params[name] for name in sorted(saved["net"])}
optim = torch.optim.Adam(list(params.values()), lr=2e-3)
first = 0
if saved:
    net.load_state_dict(saved["net"])
    optim.load_state_dict(saved["optim"])
    first = saved["it"]

for it in range(first, 24):
    at = it * 10 % 60
    optim.zero_grad()
    error = (net(xs[at : at + 10]) - ys[at : at + 10]).square().mean()
    error.backward()
    optim.step()
    if it % 4 == 3:
        part = file.with_suffix(".part")
        torch.save({"net": net.state_dict(), "optim": optim.state_dict(), "it": it + 1}, part)
        os.replace(part, file)
