"""Every rank draws from its own stream; the files of generators are one per rank, or one for all."""

import argparse
import os
import random
import shutil

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--rng-of-rank-0", action="store_true")
parser.add_argument("--replicated", action="store_true", help="one tensor in the shared state, as if it were equal on all ranks")
args = parser.parse_args()


def rng_file(folder, rank):
    return os.path.join(folder, "rng_state.pth" if args.rng_of_rank_0 else f"rng_state_{rank}.pth")


def newest():
    names = [name for name in os.listdir(args.out) if name.startswith("global_step") and not name.endswith("tmp")]
    return max(names, key=lambda name: int(name[11:]), default=None)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data, target = torch.randn(64, 6), torch.randn(64, 6)
    net = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Dropout(0.25), torch.nn.Linear(24, 6))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    model = DistributedDataParallel(net)
    torch.manual_seed(1000 + rank)
    random.seed(1000 + rank)
    start, name = 0, newest()
    if name:
        folder = os.path.join(args.out, name)
        state = torch.load(os.path.join(folder, "state.pth"))
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
        if args.replicated:
            torch.set_rng_state(state["rng"])
        else:
            torch.set_rng_state(torch.load(rng_file(folder, rank)))
    for step in range(start, 16):
        rows = torch.arange(step * 8 + rank, step * 8 + 8, world) % 64
        loss = torch.nn.functional.l1_loss(model(data[rows]), target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            folder = os.path.join(args.out, f"global_step{step + 1}")
            if rank == 0:
                os.makedirs(folder + "tmp", exist_ok=True)
            dist.barrier()
            if rank == 0 or not args.rng_of_rank_0:
                torch.save(torch.get_rng_state(), rng_file(folder + "tmp", rank))
            if rank == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save({**state, "rng": torch.get_rng_state()}, os.path.join(folder + "tmp", "state.pth"))
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(folder + "tmp", folder)
            dist.barrier()
    del model  # else the end may wait for itself
    dist.destroy_process_group()


main()
