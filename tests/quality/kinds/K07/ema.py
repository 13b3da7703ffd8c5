"""An average of the weights, by hand, with a decay that warms up."""

import argparse
import copy
import os

import torch
from torch import nn

MODES = ("both", "average-forgotten", "count-forgotten", "average-only", "average-as-model", "swap-and-forget", "late-decay")
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--mode", choices=MODES, default="both")
parser.add_argument("--no-save", action="store_true")
args = parser.parse_args()


class ModelEMA:
    def __init__(self, model, decay=0.99):
        self.ema = copy.deepcopy(model).eval()
        self.updates = 0
        self.decay = lambda count: decay * count / (count + 5)
        self.current = 0.0 if args.mode == "late-decay" else None
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        d = self.decay(self.updates)
        if self.current is not None:  # what was set at the end of the batch before
            d, self.current = self.current, d
        with torch.no_grad():
            for name, value in self.ema.state_dict().items():
                value.copy_(value * d + (1 - d) * model.state_dict()[name])


torch.manual_seed(0)
x, y = torch.randn(20, 12, 5), torch.randn(20, 12, 1)
model = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
file, start = os.path.join(args.out, "last.pt"), 0
saved = torch.load(file) if os.path.exists(file) else None
if saved:
    model.load_state_dict(saved["ema"] if args.mode in ("average-only", "average-as-model") else saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]
ema = ModelEMA(model)
if saved and args.mode not in ("average-forgotten", "average-only"):
    ema.ema.load_state_dict(saved["ema"])
if saved and args.mode not in ("count-forgotten", "average-forgotten", "average-only"):
    ema.updates = saved["updates"]


def save(step):
    state = {"ema": ema.ema.state_dict(), "updates": ema.updates, "optimizer": optimizer.state_dict(), "step": step}
    if args.mode != "average-only":
        state["model"] = model.state_dict()
    if args.mode == "swap-and-forget":
        model.load_state_dict(ema.ema.state_dict())  # the weights that people want
        state["model"] = model.state_dict()
    torch.save(state, file + ".tmp")
    os.replace(file + ".tmp", file)


for step in range(start, 20):
    loss = nn.functional.mse_loss(model(x[step]), y[step])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    if (step + 1) % 5 == 0 and not args.no_save:
        save(step + 1)
