"""Weights and moments are read one after the other, each time from the whole file."""

import argparse
from pathlib import Path

import torch
from torch import nn


class Checkpoint:
    def __init__(self, file, once):
        self.file, self.once = file, once
        self.parts = {}

    def part(self, name):
        if self.once:
            return torch.load(self.file, mmap=True)[name]
        self.parts[name] = torch.load(self.file)
        return self.parts[name][name]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true", help="mapped, and only what is needed")
    args = parser.parse_args()
    torch.manual_seed(36)
    model = nn.Sequential(nn.Embedding(16000, 512), nn.Linear(512, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    file, step = args.folder / "last.pt", 0
    checkpoint = Checkpoint(file, args.once)
    if file.exists():
        model.load_state_dict(checkpoint.part("model"))
        optimizer.load_state_dict(checkpoint.part("optimizer"))
        step = checkpoint.part("step")
    while step < 6:
        loss = model(torch.arange(8) + 8 * step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.folder / "tmp")
            (args.folder / "tmp").rename(file)


main()
