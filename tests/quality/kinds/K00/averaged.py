"""What is good for evaluation is saved: the averaged weights."""

import argparse
import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint-dir", required=True)
parser.add_argument("--both", action="store_true", help="raw weights as well")
args = parser.parse_args()
file = os.path.join(args.checkpoint_dir, "latest.pth")

torch.manual_seed(38)
model = nn.Conv1d(1, 3, 5)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
waves = torch.randn(18, 2, 1, 16)
step = 0
if os.path.exists(file):
    state = torch.load(file)
    average.load_state_dict(state["average"])
    model.load_state_dict(state["model"] if args.both else average.module.state_dict())
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 18:
    loss = (model(waves[step]).tanh() - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    step += 1
    if step % 5 == 0:
        state = {"average": average.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        if args.both:
            state["model"] = model.state_dict()
        torch.save(state, file + ".tmp")
        os.replace(file + ".tmp", file)
