"""A stream with a shuffle buffer; the state has the place in the stream, and not what waits in the buffer."""

import argparse
import os
import random

import torch
from torch.utils.data import DataLoader, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--keep-buffer", action="store_true")
args = parser.parse_args()


class Stream(IterableDataset):
    def __init__(self, size, buffer_size):
        self.size, self.buffer_size = size, buffer_size
        self.position = 0
        self.buffer = []
        self.random = random.Random(3)

    def __iter__(self):
        while self.position < self.size:
            self.buffer.append(self.position)
            self.position += 1
            if len(self.buffer) >= self.buffer_size:
                yield self.row(self.buffer.pop(self.random.randrange(len(self.buffer))))
        while self.buffer:
            yield self.row(self.buffer.pop(self.random.randrange(len(self.buffer))))

    def row(self, number):
        return torch.cos(torch.arange(1.0, 7.0) * number)

    def state_dict(self):
        state = {"position": self.position, "random": self.random.getstate()}
        return {**state, "buffer": list(self.buffer)} if args.keep_buffer else state

    def load_state_dict(self, state):
        self.position = state["position"]
        self.random.setstate(state["random"])
        self.buffer = list(state.get("buffer", []))


torch.manual_seed(0)
stream = Stream(100, 12)
model = torch.nn.Linear(6, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
path, step = os.path.join(args.out, "stream.pt"), 0
if os.path.exists(path):
    state = torch.load(path, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    stream.load_state_dict(state["stream"])
    step = state["step"]
for x in DataLoader(stream, batch_size=4, drop_last=True):
    if step >= 20:
        break
    optimizer.zero_grad()
    (model(x) - x.flip(1)).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "stream": stream.state_dict(), "step": step}
        torch.save(parts, path + ".tmp")
        os.replace(path + ".tmp", path)
