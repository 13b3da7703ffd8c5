"""The usual script with dropout: weights, optimizer, schedule and step are saved."""

import argparse
import os
import random

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--save_rng", default="", help="which generators are saved: torch,numpy,python")
parser.add_argument("--careful", action="store_true", help="an unreadable file of generators is a warning")
args = parser.parse_args()


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state():
    every = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    return {name: every[name] for name in args.save_rng.split(",") if name}


def set_rng_state(states):
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "numpy" in states:
        np.random.set_state(states["numpy"])
    if "python" in states:
        random.setstate(states["python"])


def load_rng_state(path):
    if not args.careful:
        set_rng_state(torch.load(path, weights_only=False))
        return
    try:
        set_rng_state(torch.load(path, weights_only=True))
    except Exception as error:
        print(f"warning: could not restore random states: {type(error).__name__}")


def checkpoint_of(step):
    return os.path.join(args.output_dir, f"checkpoint-{step}")


def save(step):
    final = checkpoint_of(step)
    os.makedirs(final + ".tmp")
    torch.save(rng_state(), os.path.join(final + ".tmp", "rng_state.pth"))
    torch.save(model.state_dict(), os.path.join(final + ".tmp", "model.bin"))
    torch.save(optimizer.state_dict(), os.path.join(final + ".tmp", "optimizer.pt"))
    torch.save(scheduler.state_dict(), os.path.join(final + ".tmp", "scheduler.pt"))
    os.rename(final + ".tmp", final)


set_seed(42)
features, labels = torch.randn(80, 10), torch.randint(0, 4, (80,))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 24)
steps = [int(name.split("-")[1]) for name in os.listdir(args.output_dir) if not name.endswith(".tmp")]
start = max(steps, default=0)
if start:
    folder = checkpoint_of(start)
    model.load_state_dict(torch.load(os.path.join(folder, "model.bin")))
    optimizer.load_state_dict(torch.load(os.path.join(folder, "optimizer.pt")))
    scheduler.load_state_dict(torch.load(os.path.join(folder, "scheduler.pt")))
    load_rng_state(os.path.join(folder, "rng_state.pth"))

for step in range(start + 1, 25):
    rows = torch.arange(step * 8, step * 8 + 8) % 80
    x = features[rows]
    mixed = float(np.random.beta(0.4, 0.4))
    if random.random() < 0.5:
        x = mixed * x + (1 - mixed) * x.flip(0)
    loss = nn.functional.cross_entropy(model(x), labels[rows], label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 6 == 0:
        save(step)
