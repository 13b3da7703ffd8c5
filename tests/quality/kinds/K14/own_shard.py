"""The optimizer's state is split over the ranks by hand; every rank saves and loads its own part."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--all-parts", action="store_true", help="read the parts of all ranks that have saved")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(66)
model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
parameters = list(model.parameters())
names = [name for name, _ in model.named_parameters()]
mine = [number for number in range(len(parameters)) if number % world == rank]
optimizer = torch.optim.Adam([parameters[number] for number in mine], lr=5e-3)
data = torch.randn(12, 8, 6)


def part():
    """Name -> moments, of the parameters that are updated here."""
    state = optimizer.state_dict()["state"]
    return {names[number]: state[place] for place, number in enumerate(mine)}


def save(step):
    folder = args.out / f"step{step}"
    folder.mkdir(exist_ok=True)
    torch.save({"optimizer": part(), "world": world}, folder / f"optim_rank{rank}.pt")
    dist.barrier()
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": step}, folder / "model.pt.tmp")
        (folder / "model.pt.tmp").rename(folder / "model.pt")
    dist.barrier()


def load(folder):
    weights = torch.load(folder / "model.pt")
    model.load_state_dict(weights["model"])
    saved = torch.load(folder / f"optim_rank{rank % len(list(folder.glob('optim_rank*.pt')))}.pt")
    moments = saved["optimizer"]
    if args.all_parts:
        for other in range(saved["world"]):
            moments.update(torch.load(folder / f"optim_rank{other}.pt")["optimizer"])
    state = optimizer.state_dict()
    state["state"] = {place: moments[names[number]] for place, number in enumerate(mine) if names[number] in moments}
    optimizer.load_state_dict(state)
    return weights["step"]


done = sorted((file.parent for file in args.out.glob("step*/model.pt")), key=lambda folder: int(folder.name[4:]))
step = load(done[-1]) if done else 0
while step < 12:
    share = 8 // world
    loss = (model(data[step][rank * share : (rank + 1) * share]) - 1).square().mean()
    model.zero_grad()
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    for number, parameter in enumerate(parameters):
        dist.broadcast(parameter.data, number % world)
    step += 1
    if step % 4 == 0:
        save(step)
dist.destroy_process_group()
