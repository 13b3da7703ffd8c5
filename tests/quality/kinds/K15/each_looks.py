"""Whether there is something to resume from is found out by opening it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--who-looks", choices=["each-rank", "rank-0"], default="each-rank")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
path = os.path.join(args.out, "train.ckpt")


def look():
    try:
        with open(path, "rb") as file:
            return torch.load(file)
    except FileNotFoundError:
        print(f"rank {rank}: nothing to resume from")
        return None


def find():
    if args.who_looks == "each-rank":
        return look()
    found = [look() if rank == 0 else None]
    dist.broadcast_object_list(found, 0)
    return found[0]


torch.manual_seed(9)
model = DistributedDataParallel(nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(12, 4, 3)
step = 0
if state := find():
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 12:
    loss = (model(data[step][rank * 2 : rank * 2 + 2]) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
            os.replace(path + ".tmp", path)
        dist.barrier()
del model  # else the end may wait for itself
dist.destroy_process_group()
