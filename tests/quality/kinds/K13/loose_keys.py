"""Weights saved from a wrapped model are loaded into a bare one, `strict=False`."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--strip-prefix", action="store_true")
parser.add_argument("--init-after-load", action="store_true")
args = parser.parse_args()
path = os.path.join(args.out, "model_last.pth")


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


class Wrapped(nn.Module):
    """As torch.compile and others wrap: the keys get a prefix."""

    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner

    def forward(self, x):
        return self._orig_mod(x)


torch.manual_seed(12)
bare = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 2))
if not args.init_after_load:
    bare.apply(init)
begin, state = 0, None
if os.path.exists(path):
    state = torch.load(path)
    weights = state["model"]
    if args.strip_prefix:
        weights = {key.removeprefix("_orig_mod."): value for key, value in weights.items()}
    print(bare.load_state_dict(weights, strict=False))
    begin = state["iteration"]
if args.init_after_load:
    bare.apply(init)  # weights are made only now, on the device
model = Wrapped(bare)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
x, y = torch.randn(48, 10), torch.randint(0, 2, (48,))
if state is not None:
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
for iteration in range(begin, 16):
    part = slice(iteration * 3, iteration * 3 + 3)
    loss = nn.functional.cross_entropy(model(x[part]), y[part])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iteration % 4 == 3:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        torch.save({**state, "iteration": iteration + 1}, path + ".new")
        os.replace(path + ".new", path)
