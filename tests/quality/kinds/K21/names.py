"""Names of parameters with the prefix of a wrapper, which is there in some saves and not in others."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--ckpt", required=True)
parser.add_argument("--strip", action="store_true")
parser.add_argument("--lenient", action="store_true", help="strict=False")
parser.add_argument("--wrap", choices=["always", "after-resume", "first-run"], default="always")
args = parser.parse_args()


class Compiled(nn.Module):
    """As torch.compile wraps a module, without the time that it takes."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return self._orig_mod(x)


def plain(state):
    return {name.removeprefix("_orig_mod."): value for name, value in state.items()} if args.strip else state


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 5))
path = os.path.join(args.ckpt, "last.pt")
step, resumed = 0, os.path.exists(path)
if args.wrap == "always" or (args.wrap == "first-run" and not resumed):
    net = Compiled(net)
if resumed:
    saved = torch.load(path)
    target = net._orig_mod if args.strip and isinstance(net, Compiled) else net
    target.load_state_dict(saved["net"], strict=not args.lenient)
    step = saved["step"]
    if args.wrap == "after-resume":
        net = Compiled(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while step < 20:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
    loss = (net(x) - x.sort(1).values).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        torch.save({"net": plain(net.state_dict()), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
