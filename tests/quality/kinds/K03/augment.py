"""Samples are augmented in the dataset: by a generator of the worker, by the global one, or by a seed of the sample's own."""

import argparse
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

parser = argparse.ArgumentParser()
parser.add_argument("--save-dir", required=True)
parser.add_argument("--noise", choices=["worker", "global", "sample"], default="sample")
args = parser.parse_args()
PER_EPOCH = 8


class Depth(Dataset):
    def __init__(self):
        self.images = torch.from_numpy(np.random.RandomState(0).randn(32, 9).astype("float32"))
        self.epoch = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        draw = np.random
        if args.noise == "sample":
            draw = np.random.RandomState(self.epoch * 1000 + index)
        image = self.images[index] + torch.from_numpy(draw.normal(0, 0.1, 9).astype("float32"))
        return image, self.images[index].sum()


def worker_init(worker_id):
    np.random.seed(worker_id)


torch.manual_seed(0)
np.random.seed(0)
model = torch.nn.Linear(9, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
path = os.path.join(args.save_dir, "model_best.pth.tar")
step = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]

dataset = Depth()
while step < 24:
    epoch, skip = divmod(step, PER_EPOCH)
    dataset.epoch = epoch
    order = np.random.RandomState(77 + epoch).permutation(32).tolist()
    workers = {"num_workers": 1, "worker_init_fn": worker_init} if args.noise == "worker" else {}
    for images, sums in DataLoader(Subset(dataset, order[skip * 4 :]), batch_size=4, **workers):
        loss = (model(images).squeeze(1) - sums).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
            os.replace(path + ".tmp", path)
