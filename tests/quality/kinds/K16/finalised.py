"""A writer thread reports that it is done; the main loop then points `latest` at the new checkpoint."""

import argparse
import os
import threading
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--save", required=True)
parser.add_argument("--clear", action="store_true", help="forget the completion of the save before")
args = parser.parse_args()

torch.manual_seed(19)
layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2)
completed, current, thread = threading.Event(), None, None


def write(folder, states):
    os.makedirs(folder, exist_ok=True)
    for name, state in states.items():
        torch.save(state, os.path.join(folder, name))
        time.sleep(0.3)  # slow storage
    completed.set()


def save(step):
    global current, thread
    states = {f"layer{n}.pt": {k: v.clone() for k, v in layer.state_dict().items()} for n, layer in enumerate(layers)}
    moments = {n: {k: v.clone() for k, v in moment.items()} for n, moment in optimizer.state_dict()["state"].items()}
    states["optimizer.pt"] = {"state": moments, "param_groups": optimizer.state_dict()["param_groups"], "step": step}
    if args.clear:
        completed.clear()
    current = f"iter{step}"
    thread = threading.Thread(target=write, args=(os.path.join(args.save, current), states))
    thread.start()


def maybe_finalise(block=False):
    global current
    if current is None:
        return
    if block:
        thread.join()
    if completed.is_set():
        with open(os.path.join(args.save, "latest.tmp"), "w") as file:
            file.write(current)
        os.replace(os.path.join(args.save, "latest.tmp"), os.path.join(args.save, "latest"))
        current = None


step = 0
if os.path.exists(os.path.join(args.save, "latest")):
    with open(os.path.join(args.save, "latest")) as file:
        folder = os.path.join(args.save, file.read())
    for n, layer in enumerate(layers):
        layer.load_state_dict(torch.load(os.path.join(folder, f"layer{n}.pt")))
    state = torch.load(os.path.join(folder, "optimizer.pt"))
    step = state.pop("step")
    optimizer.load_state_dict(state)
data = torch.randn(12, 3, 5)
while step < 12:
    hidden = data[step]
    for layer in layers:
        hidden = layer(hidden).relu()
    loss = (hidden - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    maybe_finalise()
    if step % 4 == 0:
        maybe_finalise(block=True)
        save(step)
maybe_finalise(block=True)
