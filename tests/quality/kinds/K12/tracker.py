"""A tracker file names the newest iteration; saving in the background was added later, in a branch of its own."""

import argparse
import os
import threading

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--async-save", action="store_true")
parser.add_argument("--track", choices=["sync-only", "always", "symlink"], default="sync-only")
args = parser.parse_args()
TRACKER = os.path.join(args.out, "latest_checkpointed_iteration.txt")
LINK = os.path.join(args.out, "latest")


def track(iteration):
    if args.track == "symlink":
        if os.path.lexists(LINK + "_new"):
            os.remove(LINK + "_new")
        os.symlink(f"iter_{iteration}", LINK + "_new")
        os.replace(LINK + "_new", LINK)
        return
    with open(TRACKER + ".tmp", "w") as file:
        file.write(str(iteration))
    os.replace(TRACKER + ".tmp", TRACKER)


def find():
    if args.track == "symlink":
        return os.path.join(args.out, os.readlink(LINK)) if os.path.islink(LINK) else None
    if not os.path.exists(TRACKER):
        return None
    with open(TRACKER) as file:
        return os.path.join(args.out, f"iter_{file.read().strip()}")


def write(state, iteration):
    folder = os.path.join(args.out, f"iter_{iteration}")
    os.makedirs(folder, exist_ok=True)
    torch.save(state, os.path.join(folder, "state.pt"))


def snapshot(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: snapshot(one) for key, one in value.items()}
    return [snapshot(one) for one in value] if isinstance(value, list) else value


def save(iteration):
    state = snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration})
    if not args.async_save:
        write(state, iteration)
        track(iteration)
        return None

    def in_background():
        write(state, iteration)
        if args.track != "sync-only":
            track(iteration)

    thread = threading.Thread(target=in_background)
    thread.start()
    return thread


torch.manual_seed(2)
model = nn.Linear(7, 7)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.randn(100, 7)
iteration, writer = 0, None
if folder := find():
    state = torch.load(os.path.join(folder, "state.pt"))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    iteration = state["iteration"]
while iteration < 14:
    loss = (model(data[iteration * 5 : iteration * 5 + 5]) ** 2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    iteration += 1
    if writer and iteration % 2 == 0:
        writer.join()
    if iteration % 4 == 0:
        writer = save(iteration)
if writer:
    writer.join()
