"""A trainer class that restores what it thinks is needed of its optimizer."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, args):
        self.args = args
        self.path = os.path.join(args.out, "last.pt")
        torch.manual_seed(1)
        self.loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,))), batch_size=8)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
        self.optimizer = self.configure_optimizer()
        self.steps = 0
        self.epoch = 0

    def configure_optimizer(self):
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0, "betas": (0.8, 0.9)}]
        return torch.optim.AdamW(groups, lr=3e-3)

    def save(self):
        optimizer = self.optimizer
        if self.args.mode == "rebuilt":
            optimizer = self.configure_optimizer()  # "the" optimizer, as everybody gets it from the factory
        state = {"model": self.model.state_dict(), "epoch": self.epoch, "steps": self.steps}
        if self.args.mode != "weights":
            state["optimizer"] = optimizer.state_dict()
        torch.save(state, self.path + ".tmp")
        os.replace(self.path + ".tmp", self.path)

    def resume(self):
        if not os.path.isfile(self.path):
            return
        state = torch.load(self.path, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.epoch, self.steps = state["epoch"], state["steps"]
        if "optimizer" not in state:
            return
        loaded = state["optimizer"]
        if self.args.mode == "no-steps":
            for entry in loaded["state"].values():
                entry["step"] = torch.tensor(0.0)
        if self.args.mode == "no-second-moments":
            for entry in loaded["state"].values():
                entry["exp_avg_sq"].zero_()
        self.optimizer.load_state_dict(loaded)

    def fit(self):
        self.resume()
        while self.epoch < 3:
            for x, y in self.loader:
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                self.steps += 1
            self.epoch += 1
            self.save()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--mode", default="all")
    Trainer(parser.parse_args()).fit()
