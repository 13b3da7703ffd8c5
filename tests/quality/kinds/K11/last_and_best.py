"""The last checkpoint replaces the one before; the best one is remembered and exported at the end."""

import argparse
import shutil
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--remember", choices=["memory", "state"], default="state")
parser.add_argument("--use-best", action="store_true")
parser.add_argument("--check-best", action="store_true")
args = parser.parse_args()


class Callback:
    """Of the kind that frameworks have."""

    def __init__(self):
        self.last, self.best, self.best_value = None, None, float("inf")

    def state_dict(self):
        return {"last": self.last, "best": self.best, "best_value": self.best_value}

    def load_state_dict(self, state):
        self.best, self.best_value = state["best"], state["best_value"]
        if args.remember == "state":
            self.last = state["last"]
        if args.check_best and self.best and not Path(self.best).exists():
            print(f"the best checkpoint {self.best} does not exist any more, looking for a new one")
            self.best, self.best_value = None, float("inf")

    def save(self, step, value, model, optimizer):
        previous, self.last = self.last, str(args.folder / f"step={step}.ckpt")
        if value < self.best_value:
            self.best_value, self.best = value, self.last
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "callback": self.state_dict()}
        torch.save(state, self.last + ".part")
        Path(self.last + ".part").rename(self.last)
        if previous and previous != self.best:
            Path(previous).unlink(missing_ok=True)


torch.manual_seed(8)
model = nn.Sequential(nn.Linear(5, 5), nn.SiLU(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
callback, step = Callback(), 0
found = sorted(args.folder.glob("step=*.ckpt"), key=lambda file: int(file.stem.split("=")[1]))
if found:
    state = torch.load(found[-1])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    callback.load_state_dict(state["callback"])
    step = state["step"]

while step < 20:
    torch.manual_seed(1000 + step)
    inputs = torch.randn(6, 5)
    loss = (model(inputs) - inputs[:, :1]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        # What is best must not be left to chance here: the first one is.
        callback.save(step, float(step), model, optimizer)
if args.use_best and callback.best:
    shutil.copy(callback.best, args.folder / "export.bin")
