"""Numbered checkpoints, the newest by name is resumed from, the last three are kept."""

import argparse
import os
import re
from pathlib import Path

import torch
from torch import nn


def checkpoints(folder, pattern):
    return sorted(folder.glob(pattern), key=lambda file: int(re.findall(r"\d+", file.name)[0]))


def load_newest(folder, args, model, optimizer):
    """Step to go on from."""
    candidates = checkpoints(folder, "ckpt-*" if args.loose_glob else "ckpt-*.pt")
    for file in reversed(candidates):
        try:
            state = torch.load(file, weights_only=True)
        except Exception as error:
            if not args.fall_back:
                raise
            print(f"{file.name} cannot be read ({error}), trying the one before")
            continue
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tmp", action="store_true")
    parser.add_argument("--loose-glob", action="store_true")
    parser.add_argument("--fall-back", action="store_true")
    parser.add_argument("--clean", action="store_true", help="remove what killed runs have left")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.clean:
        for left in args.out.glob("*.tmp"):
            left.unlink()

    torch.manual_seed(1)
    data = torch.randn(64, 6)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = load_newest(args.out, args, model, optimizer)
    while step < 18:
        batch = data[step * 4 % 64 : step * 4 % 64 + 4]
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 3 == 0:
            file = args.out / f"ckpt-{step}.pt"
            target = file.with_name(file.name + ".tmp") if args.tmp else file
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, target)
            if args.tmp:
                target.rename(file)
            for old in checkpoints(args.out, "ckpt-*.pt")[:-3]:
                old.unlink()


if __name__ == "__main__":
    main()
