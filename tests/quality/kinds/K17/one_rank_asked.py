"""Each rank has a flag of its own, which its handler sets."""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--agree", action="store_true", help="the flags of all ranks together, after each step")
args = parser.parse_args()
flag = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda number, frame: flag.fill_(1))

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(27)
model = DistributedDataParallel(nn.Linear(5, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.randn(12, 4, 5)
path, step = os.path.join(args.out, "ckpt.pt"), 0


def save():
    dist.barrier()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()


if os.path.exists(path):
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 12:
    loss = model(data[step][rank * 2 : rank * 2 + 2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    asked = flag.clone()
    if args.agree:
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    if asked or step % 4 == 0:
        save()
    if asked:
        del model  # else the end may wait for itself
        dist.destroy_process_group()
        sys.exit(0)
del model  # else the end may wait for itself
dist.destroy_process_group()
