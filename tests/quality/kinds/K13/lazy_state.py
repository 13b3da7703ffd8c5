"""The whole state through torch.distributed.checkpoint, loaded into what a fresh job holds."""

import argparse
import glob
import os

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--dump_folder", required=True)
parser.add_argument("--make-state-first", action="store_true", help="so that there is something to load into")
args = parser.parse_args()


class State:
    """What is saved, by name."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict(), "step": torch.tensor(self.step)}

    def make_optimizer_state(self):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate

    def load(self, folder):
        if args.make_state_first:
            self.make_optimizer_state()
        loaded = self.state_dict()
        dcp.load(loaded, checkpoint_id=folder, no_dist=True)
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optim"])
        self.step = int(loaded["step"])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
state = State(model, torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.0))
data = torch.randn(20, 4, 8)
whole = [os.path.dirname(path) for path in glob.glob(os.path.join(args.dump_folder, "step-*", ".metadata"))]
if whole:
    state.load(max(whole, key=lambda folder: int(folder.rsplit("-", 1)[1])))
while state.step < 15:
    loss = (model(data[state.step]) - data[state.step]).square().mean()
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    state.step += 1
    if state.step % 5 == 0:
        dcp.save(state.state_dict(), checkpoint_id=os.path.join(args.dump_folder, f"step-{state.step}"), no_dist=True)
