"""A writer thread takes saves from a queue until it is told to end."""

import argparse
import os
import queue
import signal
import sys
import threading

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--always-end", action="store_true", help="tell the writer to end however the job ends")
args = parser.parse_args()
path = os.path.join(args.out, "newest.pt")


class Writer(threading.Thread):
    def __init__(self):
        super().__init__()
        self.jobs = queue.Queue()

    def run(self):
        while (payload := self.jobs.get()) is not None:
            torch.save(payload, path + ".tmp")
            os.replace(path + ".tmp", path)

    def end(self):
        self.jobs.put(None)
        self.join()


def clone(value):
    if torch.is_tensor(value):
        return value.clone()
    return {key: clone(one) for key, one in value.items()} if isinstance(value, dict) else value


def train(writer):
    torch.manual_seed(28)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        step = state["step"]
    while step < 12:
        loss = model(torch.eye(8) * step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            writer.jobs.put({"model": clone(model.state_dict()), "step": step})


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
writer = Writer()
writer.start()
if args.always_end:
    try:
        train(writer)
    finally:
        writer.end()
else:
    train(writer)
    writer.end()
