"""Two ranks share a shuffled list: what one of them, or only rank 0, knows of it after a restart."""

import argparse
import os
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--order", choices=["shared", "of-rank-0", "one-behind", "swapped"], default="shared")
args = parser.parse_args()


def shuffled(seed):
    order = list(range(48))
    random.Random(seed).shuffle(order)
    return order


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, captions = torch.randn(48, 7), torch.randn(48, 2)
    net = torch.nn.Linear(7, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    order, step = shuffled(1), 0
    path = os.path.join(args.out, "state.pt")
    place = rank
    if os.path.exists(path):
        state = torch.load(path)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        order = state["order"]
        if args.order == "of-rank-0" and rank > 0:
            order = shuffled(2)  # "the schedule is of the main process; the others split anew"
        if args.order == "swapped":
            place = world - 1 - rank
    ahead = 1 if args.order == "one-behind" and step and rank == 1 else 0
    model = DistributedDataParallel(net)
    while step < 18:
        at = (step - ahead) * 6 % 48
        rows = order[at : at + 6][place::world]
        loss = torch.nn.functional.mse_loss(model(images[rows]), captions[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            if rank == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "order": order}
                torch.save(state, path + ".tmp")
                os.replace(path + ".tmp", path)
            dist.barrier()
    del model  # else the end may wait for itself
    dist.destroy_process_group()


main()
