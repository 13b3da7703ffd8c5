"""Where training stands in its epochs is worked out from the number of steps and the length of the loader."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--store", action="store_true", help="epoch and samples in the checkpoint")
args = parser.parse_args()

BATCH_PER_RANK, EPOCHS = 4, 3
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(77)
dataset = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
file = os.path.join(args.out, "latest.pt")


def loader(epoch, skip):
    """What is left of an epoch for this rank, after `skip` samples of all ranks."""
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))[skip:][rank::world]
    return DataLoader(Subset(dataset, order.tolist()), batch_size=BATCH_PER_RANK)


step, epoch, samples = 0, 0, 0
if os.path.exists(file):
    state = torch.load(file)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    if args.store:
        epoch, samples = state["epoch"], state["samples"]
    else:
        epoch, batches = divmod(step, len(loader(0, 0)))
        samples = batches * BATCH_PER_RANK * world
while epoch < EPOCHS:
    for inputs, targets in loader(epoch, samples):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, samples = step + 1, samples + BATCH_PER_RANK * world
        if step % 4 == 0:
            if rank == 0:
                where = {"step": step, "epoch": epoch, "samples": samples}
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), **where}, file + ".tmp")
                os.replace(file + ".tmp", file)
            dist.barrier()
    epoch, samples = epoch + 1, 0
del model  # else the end may wait for itself
dist.destroy_process_group()
