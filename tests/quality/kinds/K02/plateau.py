"""The rate is lowered when validation stands still; how long it has stood still is forgotten."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--logdir", required=True)
parser.add_argument("--no-scheduler-state", action="store_true")
hparams = parser.parse_args()


def run():
    torch.manual_seed(12)
    x, y = torch.randn(32, 6), torch.randn(32, 1)
    valid_x, valid_y = torch.randn(16, 6), torch.randn(16, 1)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=2, threshold=0.3)
    path, epoch = os.path.join(hparams.logdir, "epoch.pt"), 0
    if os.path.exists(path):
        saved = torch.load(path)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        if not hparams.no_scheduler_state:
            scheduler.load_state_dict(saved["scheduler"])
        epoch = saved["epoch"]
    while epoch < 16:
        net.train()
        for rows in (slice(0, 16), slice(16, 32)):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            scheduler.step(nn.functional.mse_loss(net(valid_x), valid_y))
        epoch += 1
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save({**state, "epoch": epoch}, path + ".tmp")
        os.replace(path + ".tmp", path)


run()
