"""Warm-up from 0, then cosine, by a LambdaLR; one way to leave the schedule out of a checkpoint, and others to be off by one."""

import argparse
import math
import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


@dataclass
class Config:
    out: str
    seam: str = "saved"
    total: int = 24
    warmup: int = 5
    save_every: int = 6
    lr: float = 2e-2


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--seam", choices=["saved", "forgotten", "last-epoch", "before-step"], default="saved")
    return Config(**vars(parser.parse_args()))


def schedule(cfg, optimizer, last_epoch=-1):
    def factor(step):
        if step < cfg.warmup:
            return step / cfg.warmup
        return 0.5 * (1 + math.cos(math.pi * (step - cfg.warmup) / (cfg.total - cfg.warmup)))

    return LambdaLR(optimizer, factor, last_epoch=last_epoch)


def write(cfg, model, optimizer, scheduler, step):
    name = os.path.join(cfg.out, f"step_{step:05d}.pt")
    state = {"step": step, "model": model.state_dict(), "optim": optimizer.state_dict(), "sched": scheduler.state_dict()}
    torch.save(state, name + ".tmp")
    os.replace(name + ".tmp", name)


def main():
    cfg = parse()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    names = sorted(name for name in os.listdir(cfg.out) if name.endswith(".pt"))
    state = torch.load(os.path.join(cfg.out, names[-1])) if names else None
    if state:
        model.load_state_dict(state["model"])
    if state and cfg.seam == "last-epoch":
        optimizer.load_state_dict(state["optim"])
        scheduler = schedule(cfg, optimizer, last_epoch=state["step"])
    else:
        scheduler = schedule(cfg, optimizer)
        if state:
            optimizer.load_state_dict(state["optim"])
        if state and cfg.seam != "forgotten":
            scheduler.load_state_dict(state["sched"])
    for step in range(state["step"] if state else 0, cfg.total):
        drawn = torch.Generator().manual_seed(step)
        x = torch.randn(16, 4, generator=drawn)
        loss = nn.functional.smooth_l1_loss(model(x), x.sum(1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        saves = (step + 1) % cfg.save_every == 0
        if saves and cfg.seam == "before-step":
            write(cfg, model, optimizer, scheduler, step + 1)
        scheduler.step()
        if saves and cfg.seam != "before-step":
            write(cfg, model, optimizer, scheduler, step + 1)


if __name__ == "__main__":
    main()
