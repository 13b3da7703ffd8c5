"""Each rank has a symlink to what it saved last."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--save-folder", required=True)
parser.add_argument("--one-link", action="store_true", help="rank 0 makes one for all")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(31)
net = DDP(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
data = torch.randn(15, 4, 6)
link = os.path.join(args.save_folder, "latest" if args.one_link else f"latest-rank{rank}.pt")


def save(batches):
    name = f"ba{batches}.pt" if args.one_link else f"ba{batches}-rank{rank}.pt"
    if rank == 0 or not args.one_link:
        target = os.path.join(args.save_folder, name)
        torch.save({"net": net.module.state_dict(), "optimizer": optimizer.state_dict(), "batches": batches}, target)
        if os.path.lexists(link + ".new"):
            os.unlink(link + ".new")
        os.symlink(name, link + ".new")
        os.replace(link + ".new", link)
    dist.barrier()


batches = 0
if os.path.exists(link):
    state = torch.load(link)
    net.module.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    batches = state["batches"]
while batches < 15:
    part = 4 // world
    loss = net(data[batches][rank * part : (rank + 1) * part]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    batches += 1
    if batches % 3 == 0:
        save(batches)
del net  # else the end may wait for itself
dist.destroy_process_group()
