"""Each launch begins its permutation at the head, and stops when all updates are done."""

import os
import sys

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

out, stateless = sys.argv[1], "--stateless" in sys.argv
path = os.path.join(out, "latest.pt")
torch.manual_seed(0)
data = TensorDataset(torch.randn(72, 5))
model = torch.nn.Linear(5, 5)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
done = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["done"]


def train_steps(done):
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(99))
    for number, (x,) in enumerate(DataLoader(data, batch_size=4, sampler=sampler)):
        if not stateless and number < done:
            continue
        if done >= 18:
            return
        loss = (model(x) + x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done % 4 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, path + ".new")
            os.replace(path + ".new", path)


train_steps(done)
