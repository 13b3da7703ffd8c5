"""A scheduler that is stepped once per process and update, as wrappers do that keep the code of one process unchanged."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--count-updates", action="store_true", help="what is saved is the count of updates")
args = parser.parse_args()
GLOBAL_BATCH, WARMUP = 8, 18


def factor(count, world):
    return min(1.0, (count // world + 1) / WARMUP)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = torch.randn(160, 6), torch.randn(160, 3)
    net = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: factor(n, world))
    path, done = os.path.join(args.out, "state.pt"), 0
    if os.path.exists(path):
        state = torch.load(path)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        done = state["done"]
        if args.count_updates:
            schedule.last_epoch = done * world
            for group, base in zip(optimizer.param_groups, schedule.base_lrs):
                group["lr"] = base * factor(done * world, world)
    model = DistributedDataParallel(net)
    share = GLOBAL_BATCH // world
    while done < 20:
        at = done * GLOBAL_BATCH + rank * share
        loss = (model(x[at : at + share]) - y[at : at + share]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(world):
            schedule.step()
        done += 1
        if done % 5 == 0:
            if rank == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
                torch.save({**state, "done": done}, path + ".tmp")
                os.replace(path + ".tmp", path)
            dist.barrier()
    del model  # else the end may wait for itself
    dist.destroy_process_group()


main()
