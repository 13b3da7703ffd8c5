"""Each rank saves the state of its loader; the global batch stays, whatever the number of ranks."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--position", choices=["per-rank", "global"], default="per-rank")
parser.add_argument("--other-size", choices=["load", "refuse"], default="load")
args = parser.parse_args()

GLOBAL_BATCH = 8
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Loader:
    """This rank's samples of each global batch; `seen` counts them."""

    def __init__(self, length):
        self.length, self.seen = length, 0

    def next(self):
        share = GLOBAL_BATCH // world
        batch = self.seen // share
        self.seen += share
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(batch * GLOBAL_BATCH // self.length))
        first = batch * GLOBAL_BATCH % self.length
        return order[first : first + GLOBAL_BATCH][rank::world]

    def state_dict(self):
        return {"seen": self.seen, "all_ranks": self.seen * world}

    def load_state_dict(self, state):
        self.seen = state["seen"] if args.position == "per-rank" else state["all_ranks"] // world


torch.manual_seed(55)
data = torch.randn(48, 5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader, step = Loader(len(data)), 0
latest = os.path.join(args.out, "model.pt")


def save():
    torch.save(loader.state_dict(), os.path.join(args.out, f"loader-{rank}-{step}.pt"))
    dist.barrier()
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "world": world}
        torch.save(state, latest + ".tmp")
        os.replace(latest + ".tmp", latest)
    dist.barrier()


if os.path.exists(latest):
    state = torch.load(latest)
    if args.other_size == "refuse" and state["world"] != world:
        raise SystemExit(
            f"{latest}: the loaders were saved on world size {state['world']}, expected {state['world']}, found {world}"
        )
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    loader.load_state_dict(torch.load(os.path.join(args.out, f"loader-{rank}-{step}.pt")))
while step < 16:
    loss = model(data[loader.next()]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        save()
del model  # else the end may wait for itself
dist.destroy_process_group()
