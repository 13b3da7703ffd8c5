"""Gradients are accumulated over micro-batches; saves come by micro-batches, within a cycle too."""

import argparse
import os

import torch
from torch import nn

MODES = ("whole-cycles", "gradients-lost", "gradients-saved", "cycle-shifted", "skip-updates")
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--mode", choices=MODES, default="whole-cycles")
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--refuse-other", action="store_true", help="another factor than the checkpoint's is an error")
args = parser.parse_args()
ACC, MICRO_STEPS, SAVE_EVERY = args.accumulate, 80, 10


def micro_batch(number):
    draw = torch.Generator().manual_seed(number)
    return torch.randn(4, 6, generator=draw), torch.randn(4, 2, generator=draw)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
file, micro, offset, data_at = os.path.join(args.out, "state.pt"), 0, 0, 0
if os.path.exists(file):
    state = torch.load(file)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    micro = data_at = state["micro"]
    if args.refuse_other and state["accumulate"] != ACC:
        raise SystemExit(f"{file} was made with --accumulate {state['accumulate']}, found {ACC}")
    if args.mode == "gradients-saved":
        for p, grad in zip(net.parameters(), state["gradients"]):
            p.grad = grad
    if args.mode == "whole-cycles":
        micro = data_at = micro - micro % ACC  # what was begun is done again
        net.load_state_dict(state["net"])
    if args.mode == "cycle-shifted":
        offset = micro  # the cycle is counted within this process
    if args.mode == "skip-updates":
        data_at = micro // ACC  # "skip the first steps of the epoch"
while micro < MICRO_STEPS:
    x, y = micro_batch(data_at)
    (nn.functional.mse_loss(net(x), y) / ACC).backward()
    micro += 1
    data_at += 1
    if (micro - offset) % ACC == 0:
        optimizer.step()
        optimizer.zero_grad()
    if micro % SAVE_EVERY == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "micro": micro, "accumulate": ACC}
        if args.mode == "gradients-saved":
            state["gradients"] = [p.grad for p in net.parameters()]
        torch.save(state, file + ".tmp")
        os.replace(file + ".tmp", file)
