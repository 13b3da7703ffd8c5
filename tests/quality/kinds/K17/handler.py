"""SIGTERM: save, and leave."""

import argparse
import os
import signal
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--save-in", choices=["handler", "loop"], default="loop")
parser.add_argument("--atomic", action="store_true")
parser.add_argument("--once", action="store_true", help="further signals are ignored")
parser.add_argument("--exit-code", type=int, default=0)
args = parser.parse_args()
path = os.path.join(args.out, "last.ckpt")
asked = False

torch.manual_seed(25)
model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0


def save():
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "step": step}
    if args.atomic:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    else:
        torch.save(state, path)


def handle(number, frame):
    global asked
    signal.signal(number, signal.SIG_IGN if args.once else signal.SIG_DFL)
    if args.save_in == "handler":
        save()
        sys.exit(args.exit_code)
    asked = True


signal.signal(signal.SIGTERM, handle)
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
data = torch.randn(20, 4, 6)
if step:
    torch.set_rng_state(state["rng"])
while step < 16:
    loss = (model(data[step]) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if asked or step % 5 == 0:
        save()
    if asked:
        sys.exit(args.exit_code)
