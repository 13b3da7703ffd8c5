"""Weights and training state are files of their own, and of each the newest is loaded."""

import argparse
import os
import re

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--path", required=True)
parser.add_argument("--same-index", action="store_true", help="only an index of which both files are there")
parser.add_argument("--weights", default="model.{}.pt")
parser.add_argument("--state", default="checkpoint.{}.pt")
args = parser.parse_args()


def indices(template):
    pattern = re.escape(template).replace(r"\{\}", r"(\d+)")
    return {int(found[1]) for name in os.listdir(args.path) if (found := re.fullmatch(pattern, name))}


def file(template, index):
    return os.path.join(args.path, template.format(index))


def load(model, optimizer, scheduler):
    weights, states = indices(args.weights), indices(args.state)
    if args.same_index:
        weights = states = weights & states
    if not weights or not states:
        return 0
    model.load_state_dict(torch.load(file(args.weights, max(weights))))
    state = torch.load(file(args.state, max(states)))
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["epoch"]


def save(model, optimizer, scheduler, epoch):
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epoch": epoch}
    for target, content in ((file(args.state, epoch), state), (file(args.weights, epoch), model.state_dict())):
        torch.save(content, target + "~")
        os.rename(target + "~", target)


torch.manual_seed(13)
x = torch.linspace(-1, 1, 24).reshape(24, 1)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
epoch = load(model, optimizer, scheduler)
while epoch < 5:
    for first in range(0, 24, 8):
        batch = x[first : first + 8]
        loss = nn.functional.mse_loss(model(batch), batch.sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    epoch += 1
    save(model, optimizer, scheduler, epoch)
