"""Shards in a folder of their own per save, and beside the folders one file with schedule and position."""

import argparse
import json
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--side-file", choices=["first", "inside"], default="first")
args = parser.parse_args()
side = os.path.join(args.out, "train_state.json")

torch.manual_seed(17)
model = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)


def put(path, state):
    with open(path + ".tmp", "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def save(step):
    state = {"step": step, "scheduler": scheduler.state_dict()}
    folder = os.path.join(args.out, f"shards-{step}")
    os.makedirs(folder + ".tmp", exist_ok=True)
    if args.side_file == "first":
        put(side, state)
    for number, layer in enumerate(model):
        torch.save(layer.state_dict(), os.path.join(folder + ".tmp", f"shard{number}.pt"))
    torch.save(optimizer.state_dict(), os.path.join(folder + ".tmp", "optimizer.pt"))
    if args.side_file == "inside":
        put(os.path.join(folder + ".tmp", "train_state.json"), state)
    os.rename(folder + ".tmp", folder)


def load():
    steps = [int(n.split("-")[1]) for n in os.listdir(args.out) if n.startswith("shards-") and not n.endswith(".tmp")]
    if not steps:
        return 0
    folder = os.path.join(args.out, f"shards-{max(steps)}")
    for number, layer in enumerate(model):
        layer.load_state_dict(torch.load(os.path.join(folder, f"shard{number}.pt")))
    optimizer.load_state_dict(torch.load(os.path.join(folder, "optimizer.pt")))
    with open(side if args.side_file == "first" else os.path.join(folder, "train_state.json")) as file:
        state = json.load(file)
    scheduler.load_state_dict(state["scheduler"])
    return state["step"]


data = torch.randn(16, 2, 6)
step = load()
while step < 16:
    hidden = data[step]
    for layer in model:
        hidden = torch.tanh(layer(hidden))
    optimizer.zero_grad()
    (hidden - 0.5).square().mean().backward()
    optimizer.step()
    scheduler.step()
    step += 1
    if step % 4 == 0:
        save(step)
