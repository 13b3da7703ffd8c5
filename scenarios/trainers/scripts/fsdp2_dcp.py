"""FSDP2 with torch.distributed.checkpoint, in one reused checkpoint id or in a directory per step with a `latest` file.

The way to save and resume is that of the tutorial "Getting Started with Distributed Checkpoint".
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--max-steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=4)
parser.add_argument("--one-id", action="store_true")
parser.add_argument("--in-background", action="store_true")
args = parser.parse_args()


class AppState(dcp.stateful.Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


dist.init_process_group("cpu:gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
app = AppState(model, optimizer)
latest = os.path.join(args.out, "latest")
where = None
if args.one_id:
    where = os.path.join(args.out, "checkpoint") if os.path.isdir(os.path.join(args.out, "checkpoint")) else None
elif os.path.exists(latest):
    where = os.path.join(args.out, open(latest).read())
if where:
    dcp.load({"app": app}, checkpoint_id=where)
rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
pending = None
background = dist.new_group() if args.in_background else None  # training goes on with the other one meanwhile
while app.step < args.max_steps:
    x = rows[(app.step * world + rank) * 4 % 64 :][:4]
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    app.step += 1
    print("rank", rank, "step", app.step, "loss", loss.item())
    if app.step % args.save_steps == 0:
        name = "checkpoint" if args.one_id else f"step-{app.step}"
        if pending is not None:
            pending.result()
        if args.in_background:
            pending = dcp.async_save({"app": app}, checkpoint_id=os.path.join(args.out, name), process_group=background)
        else:
            dcp.save({"app": app}, checkpoint_id=os.path.join(args.out, name))
        if rank == 0 and not args.one_id:
            with open(latest, "w") as file:
                file.write(name)
if pending is not None:
    pending.result()
dist.destroy_process_group()
