"""Each rank writes into a staging folder, which is renamed when all are done."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--renamed-by", choices=["all", "main"], default="all")
parser.add_argument("--make-dir", choices=["look-first", "exist-ok"], default="exist-ok")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.randn(10, 8, 4)


def save(step):
    final = os.path.join(args.output_dir, f"checkpoint-{step}")
    staging = os.path.join(args.output_dir, f"tmp-checkpoint-{step}")
    if args.make_dir == "exist-ok":
        os.makedirs(staging, exist_ok=True)
    elif not os.path.isdir(staging):
        os.mkdir(staging)
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(staging, "model.pt"))
    torch.save(torch.get_rng_state(), os.path.join(staging, f"rng_{rank}.pt"))
    dist.barrier()
    if args.renamed_by == "main":
        if rank == 0:
            os.rename(staging, final)
    elif os.path.exists(staging):
        os.rename(staging, final)
    dist.barrier()


def newest():
    names = [name for name in os.listdir(args.output_dir) if name.startswith("checkpoint-")]
    return os.path.join(args.output_dir, max(names, key=lambda name: int(name[11:]))) if names else None


step = 0
if folder := newest():
    state = torch.load(os.path.join(folder, "model.pt"))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(torch.load(os.path.join(folder, f"rng_{rank}.pt")))
    step = state["step"]
while step < 10:
    loss = model(data[step][rank * 4 : rank * 4 + 4]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        save(step)
dist.destroy_process_group()
