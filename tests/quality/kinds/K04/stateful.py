"""A loader with state_dict: what it forgets is the epoch, or what the end of an epoch means."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--loader", choices=["good", "no-epoch", "finished-is-fresh"], default="good")
parser.add_argument("--save-every", type=int, default=5)
args = parser.parse_args()


class StatefulLoader:
    def __init__(self, rows, batch):
        self.rows, self.batch = rows, batch
        self.epoch = self.yielded = 0
        self._resumed = False

    def set_epoch(self, epoch):
        if not self._resumed:
            self.epoch = epoch

    def __iter__(self):
        if not self._resumed:
            self.yielded = 0
        self._resumed = False
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.epoch))
        while (at := self.yielded * self.batch) < len(order):
            self.yielded += 1
            yield self.rows[order[at : at + self.batch]]

    def state_dict(self):
        return {"epoch": self.epoch, "yielded": self.yielded}

    def load_state_dict(self, state):
        self.yielded = state["yielded"]
        self.epoch = state["epoch"]
        self._resumed = True
        if args.loader == "no-epoch":
            self.epoch = 0
        if args.loader == "finished-is-fresh" and self.yielded * self.batch >= len(self.rows):
            self.yielded = 0


torch.manual_seed(0)
loader = StatefulLoader(torch.randn(24, 6), 4)
model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = epoch = 0
path = os.path.join(args.out, "state.pt")
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    step, epoch = state["step"], state["epoch"]
while epoch < 5:
    loader.set_epoch(epoch)
    for x in loader:
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % args.save_every == 0:
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "step": step, "epoch": epoch}, path + ".tmp")
            os.replace(path + ".tmp", path)
    epoch += 1
