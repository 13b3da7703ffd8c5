"""A schedule that moves by epochs; the checkpoint at their end is written a line too early, or restored a line too late."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--weights", required=True, help="folder")
parser.add_argument("--save-before-schedule", action="store_true")
parser.add_argument("--set-last-epoch", action="store_true")
opt = parser.parse_args()
last = os.path.join(opt.weights, "last.pt")

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(40, 5), torch.randn(40, 1)), batch_size=8)
model = nn.Sequential(nn.Linear(5, 10), nn.LeakyReLU(0.1), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.937, nesterov=True)
start_epoch, ckpt = 0, None
if os.path.exists(last):
    ckpt = torch.load(last)
    model.load_state_dict(ckpt["model"])
    start_epoch = ckpt["epoch"] + 1
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4], gamma=0.1)
if ckpt and opt.set_last_epoch:
    optimizer.load_state_dict(ckpt["optimizer"])
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    scheduler.last_epoch = start_epoch  # see the docs: "the index of last epoch"
elif ckpt:
    optimizer.load_state_dict(ckpt["optimizer"])
    scheduler.load_state_dict(ckpt["scheduler"])


def save(epoch):
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"epoch": epoch}, last + ".tmp")
    os.replace(last + ".tmp", last)


for epoch in range(start_epoch, 6):
    model.train()
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if opt.save_before_schedule:
        save(epoch)
    scheduler.step()
    if not opt.save_before_schedule:
        save(epoch)
