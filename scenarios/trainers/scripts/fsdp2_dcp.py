"""A regression sharded by `fully_shard` on gloo, saved and loaded by `torch.distributed.checkpoint`; run under `torchrun`.

The pattern is the `AppState` of https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html, with the scheduler
and the step beside model and optimizer. `--one-id` saves to the same checkpoint id each time, as that page does; without it each
save has a directory of its own, and a text file `latest` names the newest. `--async` is the loop of
distributed_async_checkpoint_recipe.html: a save is waited for when the next one begins. An epoch has eight steps.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    def __init__(self, model, optimizer, scheduler):
        self.model, self.optimizer, self.scheduler, self.step = model, optimizer, scheduler, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict(), "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--one-id", action="store_true")
    parser.add_argument("--async", action="store_true", dest="asynchronous")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True, seed=0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8 // world, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.97**step)
    app = AppState(model, optimizer, scheduler)

    latest, newest = args.out / "latest", args.out / "checkpoint"
    if latest.exists():
        newest = args.out / latest.read_text()
    if newest.exists():
        dcp.load({"app": app}, checkpoint_id=newest)
        print(f"resuming from {newest.name} at step {app.step}", flush=True)

    future = None
    while app.step < args.steps:
        sampler.set_epoch(app.step // 8)
        skip = app.step % 8
        for x, y in list(loader)[skip : skip + args.steps - app.step]:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            app.step += 1
            print(f"step {app.step} rank {rank} loss {loss.item().hex()} lr {scheduler.get_last_lr()[0]!r}", flush=True)
            if app.step % args.save_every == 0:
                name = "checkpoint" if args.one_id else f"step-{app.step}"
                if args.asynchronous:
                    if future is not None:
                        future.result()
                    future = dcp.async_save({"app": app}, checkpoint_id=args.out / name)
                else:
                    dcp.save({"app": app}, checkpoint_id=args.out / name)
                if rank == 0 and not args.one_id:
                    latest.write_text(name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
