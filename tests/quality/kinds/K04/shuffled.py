"""A shuffled DataLoader, several epochs, and many ways to find the place again."""

import argparse
import itertools
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

WAYS = ("by-epoch", "first-epoch", "rng-then-order", "next-epoch", "from-the-start", "for-ever", "this-run-only")
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--way", choices=WAYS, default="by-epoch")
parser.add_argument("--every", type=int, default=5)
args = parser.parse_args()
file = os.path.join(args.out, "train_state.pt")
EPOCHS, PER_EPOCH = 4, 8

torch.manual_seed(7)
data = TensorDataset(torch.randn(32, 8), torch.randint(0, 3, (32,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
state = torch.load(file) if os.path.exists(file) else None
epoch = batches_done = skip_for_ever = 0
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch, batches_done = state["epoch"], state["batches_done"]
    if args.way == "rng-then-order":
        torch.set_rng_state(state["rng"])
    if args.way == "from-the-start":
        batches_done = 0
    if args.way == "for-ever":
        skip_for_ever = batches_done
shuffles = torch.Generator()
shuffles.manual_seed(500)


def loader_of(epoch):
    if args.way == "rng-then-order":
        return DataLoader(data, batch_size=4, shuffle=True)
    if args.way != "first-epoch":  # else: one generator, which is moved on by each epoch that this process does
        shuffles.manual_seed(500 + epoch + (1 if args.way == "next-epoch" and batches_done else 0))
    return DataLoader(data, batch_size=4, shuffle=True, generator=shuffles)


def save(epoch, done):
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**parts, "epoch": epoch, "batches_done": done, "rng": torch.get_rng_state()}, file + ".tmp")
    os.replace(file + ".tmp", file)


steps = epoch * PER_EPOCH + (state["batches_done"] if state else 0)
this_run = 0
while epoch < EPOCHS:
    skip = skip_for_ever or batches_done
    for number, (x, y) in enumerate(itertools.islice(loader_of(epoch), skip, None), skip):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        this_run += 1
        if steps % args.every == 0:
            save(epoch, this_run if args.way == "this-run-only" and epoch == 0 else number + 1)
    batches_done = 0
    epoch += 1
