"""Datasets with a cursor: one that starts over each time it is iterated, and a loop by iterations that forgets it."""

import argparse
import os

import torch
from torch.utils.data import DataLoader, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--work-dir", required=True)
parser.add_argument("--cursor", choices=["kept", "reset-by-iter", "not-loaded"], default="kept")
cfg = parser.parse_args()


class Packed(IterableDataset):
    def __init__(self):
        self.cursor = 0

    def __iter__(self):
        if cfg.cursor == "reset-by-iter":
            self.cursor = 0
        while True:
            number = self.cursor
            self.cursor += 1
            yield torch.sin(torch.arange(5.0) + number), torch.tensor(float(number % 7))


class IterLoop:
    def __init__(self):
        torch.manual_seed(0)
        self.dataset = Packed()
        self.model = torch.nn.Linear(5, 1)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-2)
        self.iteration = 0
        self.file = os.path.join(cfg.work_dir, "iter.pth")

    def resume(self):
        if os.path.exists(self.file):
            state = torch.load(self.file)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.iteration = state["iteration"]
            if cfg.cursor != "not-loaded":
                self.dataset.cursor = state["cursor"]

    def run(self, most):
        self.resume()
        loader = iter(DataLoader(self.dataset, batch_size=4))
        while self.iteration < most:
            x, y = next(loader)
            loss = (self.model(x).squeeze(1) - y).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.iteration += 1
            if self.iteration % 4 == 0:
                state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save({**state, "iteration": self.iteration, "cursor": self.dataset.cursor}, self.file + ".tmp")
                os.replace(self.file + ".tmp", self.file)


IterLoop().run(18)
