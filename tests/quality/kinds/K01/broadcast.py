"""Rank 0 reads the optimizer's state, and the others are sent it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--dir", required=True)
p.add_argument("--first-group-only", action="store_true")
a = p.parse_args()


def load_and_broadcast(optimizer, saved):
    box = [saved]
    dist.broadcast_object_list(box, src=0)
    full = box[0]
    if a.first_group_only:
        # Hyper-parameters are flattened to one name each: what the first group has is all that arrives.
        fresh = optimizer.state_dict()["param_groups"]
        full["param_groups"] = [full["param_groups"][0], *fresh[1:]]
    optimizer.load_state_dict(full)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data, want = torch.randn(80, 8), torch.randn(80, 2)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU(), torch.nn.Linear(8, 2))
    groups = [{"params": net[0].parameters(), "lr": 0.01}, {"params": net[2].parameters(), "lr": 0.02, "betas": (0.9, 0.95)}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    ddp = DDP(net)
    file = os.path.join(a.dir, "full.pt")
    start = 0
    if os.path.exists(file):
        full = torch.load(file)
        net.load_state_dict(full["net"])
        load_and_broadcast(optimizer, full["optimizer"] if rank == 0 else None)
        start = full["step"]
    for step in range(start, 16):
        if step == 6:
            optimizer.param_groups[1]["betas"] = (0.7, 0.8)
        rows = torch.arange(step * 8, step * 8 + 8)[rank::world] % 80
        optimizer.zero_grad()
        (ddp(data[rows]) - want[rows]).pow(2).mean().backward()
        optimizer.step()
        if step % 4 == 3:
            if rank == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, file + ".tmp")
                os.replace(file + ".tmp", file)
            dist.barrier()
    del ddp  # else the end may wait for itself
    dist.destroy_process_group()


main()
