"""Checkpoints by iteration, data by epoch."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--serialization-dir", required=True)
parser.add_argument("--skip", action="store_true", help="what this epoch has had before the checkpoint")
args = parser.parse_args()

torch.manual_seed(37)
dataset = TensorDataset(torch.randn(44, 6))
model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def cycle(iteration):
    """Batches without end, from the one that follows `iteration`; every epoch has its own order."""
    per_epoch = len(dataset) // 4
    epoch, done = divmod(iteration, per_epoch)
    while True:
        generator = torch.Generator().manual_seed(epoch)
        for number, (batch,) in enumerate(DataLoader(dataset, batch_size=4, shuffle=True, generator=generator)):
            if number >= done or not args.skip:
                yield batch
        epoch, done = epoch + 1, 0


iteration = 0
names = sorted(name for name in os.listdir(args.serialization_dir) if name.endswith(".pth"))
if names:
    state = torch.load(os.path.join(args.serialization_dir, names[-1]))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    iteration = state["iteration"]
for batch in cycle(iteration):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    iteration += 1
    if iteration % 4 == 0:
        name = os.path.join(args.serialization_dir, f"checkpoint_{iteration:05d}.pth")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}, name + ".tmp")
        os.replace(name + ".tmp", name)
    if iteration == 20:
        break
