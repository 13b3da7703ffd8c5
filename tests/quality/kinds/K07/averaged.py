"""torch's AveragedModel, kept in a callback; what is saved of it is the average, or nothing, or all."""

import argparse
import os

import torch
from torch.optim.swa_utils import AveragedModel

parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--keep", choices=["all", "weights", "nothing"], default="all")
args = parser.parse_args()


class Averaging:
    def __init__(self, model, begins_at):
        self.averaged = AveragedModel(model)
        self.begins_at = begins_at

    def after_step(self, model, step):
        if step >= self.begins_at:
            self.averaged.update_parameters(model)

    def evaluate(self, model, x, y):
        """On the average, without touching the weights that are trained."""
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(self.averaged(x), y).item()


def main():
    torch.manual_seed(1)
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    averaging, step = Averaging(model, begins_at=6), 0
    path = os.path.join(args.dir, "swa.pt")
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if args.keep == "all":
            averaging.averaged.load_state_dict(state["averaged"])
        elif args.keep == "weights":
            averaging.averaged.module.load_state_dict(
                {name[7:]: value for name, value in state["averaged"].items() if name.startswith("module.")}
            )
        step = state["step"]
    while step < 20:
        rows = torch.arange(step * 8, step * 8 + 8) % 64
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        averaging.after_step(model, step)
        step += 1
        if step % 5 == 0:
            print(f"{step}: {averaging.evaluate(model, x, y):.4f}", flush=True)
            parts = {"model": model, "optimizer": optimizer, "averaged": averaging.averaged}
            torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, path + ".tmp")
            os.replace(path + ".tmp", path)


main()
