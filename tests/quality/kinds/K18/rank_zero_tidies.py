"""What an interrupted save has left is finished by rank 0 when the job starts again."""

import argparse
import os
import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--root", required=True)
parser.add_argument("--collective-by", choices=["rank-0", "all"], default="rank-0")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
staging = os.path.join(args.root, "staging")
newest = os.path.join(args.root, "newest")


def finalise():
    """After a save: all ranks have written, rank 0 puts it in place."""
    dist.barrier()
    if rank == 0:
        shutil.rmtree(newest + ".old", ignore_errors=True)
        if os.path.isdir(newest):
            os.rename(newest, newest + ".old")
        os.rename(staging, newest)
        shutil.rmtree(newest + ".old", ignore_errors=True)
    dist.barrier()


def tidy():
    if os.path.exists(os.path.join(staging, "complete")):
        finalise()
    elif os.path.isdir(newest + ".old") and not os.path.isdir(newest) and rank == 0:
        os.rename(newest + ".old", newest)


torch.manual_seed(29)
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
data = torch.randn(9, 4, 4)
left = [os.path.exists(os.path.join(staging, "complete"))]
dist.broadcast_object_list(left, 0)
if left[0] and (args.collective_by == "all" or rank == 0):
    tidy()
step = 0
if os.path.isdir(newest):
    state = torch.load(os.path.join(newest, "state.pt"))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < 9:
    loss = model(data[step][rank * 2 : rank * 2 + 2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        if rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
            os.mkdir(staging)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, os.path.join(staging, "state.pt"))
            open(os.path.join(staging, "complete"), "w").close()
        finalise()
del model  # else the end may wait for itself
dist.destroy_process_group()
