"""`checkpoint-STEP` folders, at most so many of them."""

import argparse
import json
import os
import re
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PREFIX = "checkpoint"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--save_total_limit", type=int, default=2)
    parser.add_argument("--save_steps", type=int, default=2)
    parser.add_argument("--sort", choices=["name", "number"], default="number")
    parser.add_argument("--rotate", choices=["before", "after"], default="after")
    return parser.parse_args()


class Saver:
    def __init__(self, args):
        self.args = args

    def all(self):
        names = [name for name in os.listdir(self.args.output_dir) if re.fullmatch(PREFIX + r"-\d+", name)]
        key = str if self.args.sort == "name" else lambda name: int(name.split("-")[1])
        return [os.path.join(self.args.output_dir, name) for name in sorted(names, key=key)]

    def newest(self):
        found = self.all()
        return max(found, key=lambda path: int(path.rsplit("-", 1)[1])) if found else None

    def rotate(self, room):
        found = self.all()
        for old in found[: max(0, len(found) + room - self.args.save_total_limit)]:
            shutil.rmtree(old)

    def save(self, model, optimizer, step):
        if self.args.rotate == "before":
            self.rotate(room=1)
        target = os.path.join(self.args.output_dir, f"{PREFIX}-{step}")
        staging = os.path.join(self.args.output_dir, f"tmp-{PREFIX}-{step}")
        os.makedirs(staging, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(staging, "pytorch_model.bin"))
        torch.save(optimizer.state_dict(), os.path.join(staging, "optimizer.pt"))
        with open(os.path.join(staging, "trainer_state.json"), "w") as file:
            json.dump({"global_step": step}, file)
        os.rename(staging, target)
        if self.args.rotate == "after":
            self.rotate(room=0)


def main():
    args = parse()
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 2, (64,))), batch_size=4)
    saver, step = Saver(args), 0
    if resume := saver.newest():
        model.load_state_dict(torch.load(os.path.join(resume, "pytorch_model.bin")))
        optimizer.load_state_dict(torch.load(os.path.join(resume, "optimizer.pt")))
        with open(os.path.join(resume, "trainer_state.json")) as file:
            step = json.load(file)["global_step"]
    for number, (inputs, labels) in enumerate(loader):
        if number < step:
            continue
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (number + 1) % args.save_steps == 0:
            saver.save(model, optimizer, number + 1)


main()
