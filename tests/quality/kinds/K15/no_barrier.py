"""One shard per rank, renamed into place; a manifest makes the folder count."""

import argparse
import json
import os
import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--barrier", action="store_true")
parser.add_argument("--tidy-by", choices=["last", "each"], default="last")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(4)
model = DistributedDataParallel(nn.Linear(5, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.randn(12, 4, 5)


def folder_of(step):
    return os.path.join(args.out, f"step-{step}")


def put(value, path, write):
    with open(path + ".tmp", "wb") as file:
        write(value, file)
    os.replace(path + ".tmp", path)


def remove_before(step):
    for name in os.listdir(args.out):
        if int(name[5:]) < step:
            shutil.rmtree(os.path.join(args.out, name), ignore_errors=True)


def save(step):
    folder = folder_of(step)
    os.makedirs(folder, exist_ok=True)
    part = {"rank": rank, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    put(part, os.path.join(folder, f"shard{rank}.pt"), torch.save)
    if args.tidy_by == "each":
        remove_before(step)
    if args.barrier:
        dist.barrier()
    if rank == 0:
        shards = [f"shard{r}.pt" for r in range(world)]
        put({"step": step, "shards": shards}, os.path.join(folder, "manifest.json"), lambda v, f: f.write(json.dumps(v).encode()))
    if args.barrier:
        dist.barrier()
        if rank == 0 and args.tidy_by == "last":
            remove_before(step)


def newest():
    names = [name for name in os.listdir(args.out) if os.path.exists(os.path.join(args.out, name, "manifest.json"))]
    return max((int(name[5:]) for name in names), default=0)


step = newest()
dist.barrier()
if step:
    part = torch.load(os.path.join(folder_of(step), f"shard{rank}.pt"))
    model.module.load_state_dict(part["model"])
    optimizer.load_state_dict(part["optimizer"])
while step < 12:
    loss = model(data[step][rank * 2 : rank * 2 + 2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        save(step)
dist.barrier()
dist.destroy_process_group()
