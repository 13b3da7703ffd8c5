"""Every rank writes its own file into the step's folder, and rank 0 names the newest one in `latest`."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--wait-for-all", action="store_true", help="a barrier before `latest` is written")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = DistributedDataParallel(nn.Linear(6, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.randn(32, 6)
latest = os.path.join(args.out, "latest")


def save(step):
    folder = os.path.join(args.out, f"global_step{step}")
    os.makedirs(folder, exist_ok=True)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, os.path.join(folder, f"rank_{rank}.pt"))
    if args.wait_for_all:
        dist.barrier()
    if rank == 0:
        with open(latest + ".new", "w") as file:
            file.write(f"global_step{step}")
        os.replace(latest + ".new", latest)


step = 0
if os.path.exists(latest):
    with open(latest) as file:
        folder = os.path.join(args.out, file.read())
    state = torch.load(os.path.join(folder, f"rank_{rank}.pt"))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]

while step < 12:
    batch = data[(step * world + rank) % 8 * 4 :][:4]
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        save(step)
del model  # else the end may wait for itself
dist.destroy_process_group()
