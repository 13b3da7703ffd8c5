"""Early stopping with patience, and the best value so far."""

import argparse
import math
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--dirpath", required=True)
parser.add_argument("--callback", choices=["kept", "reset-at-start", "best-lost", "not-saved"], default="kept")
args = parser.parse_args()


class EarlyStopping:
    def __init__(self, patience=4):
        self.patience = patience
        self.wait_count = 0
        self.best_score = math.inf
        self.should_stop = False

    def on_train_start(self):
        if args.callback == "reset-at-start":
            self.wait_count = 0

    def on_validation_end(self, score):
        if score < self.best_score - 1e-3:
            self.best_score, self.wait_count = score, 0
        else:
            self.wait_count += 1
            self.should_stop = self.wait_count >= self.patience

    def state_dict(self):
        return {"wait_count": self.wait_count, "best_score": self.best_score}

    def load_state_dict(self, state):
        self.wait_count = state["wait_count"]
        if args.callback != "best-lost":
            self.best_score = state["best_score"]


class ModelCheckpoint:
    def __init__(self, folder):
        self.file = os.path.join(folder, "last.ckpt")

    def save(self, **parts):
        torch.save(parts, self.file + ".tmp")
        os.replace(self.file + ".tmp", self.file)

    def load(self):
        return torch.load(self.file) if os.path.exists(self.file) else None


torch.manual_seed(3)
x, vx = torch.randn(24, 6), torch.randn(12, 6)
y, vy = (rows.sum(1, keepdim=True) + torch.randn(len(rows), 1) for rows in (x, vx))
model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
stopping, saver = EarlyStopping(), ModelCheckpoint(args.dirpath)
epoch = 0
if state := saver.load():
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch = state["epoch"]
    if args.callback != "not-saved":
        stopping.load_state_dict(state["callbacks"]["EarlyStopping"])
stopping.on_train_start()
while epoch < 40 and not stopping.should_stop:
    model.train()
    for rows in torch.arange(24).split(12):
        loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        score = torch.nn.functional.mse_loss(model(vx), vy).item()
    stopping.on_validation_end(score)
    epoch += 1
    saver.save(
        model=model.state_dict(),
        optimizer=optimizer.state_dict(),
        epoch=epoch,
        callbacks={"EarlyStopping": stopping.state_dict()},
    )
    if os.environ.get("SHOW"):
        print(epoch, score, stopping.wait_count, stopping.best_score)
