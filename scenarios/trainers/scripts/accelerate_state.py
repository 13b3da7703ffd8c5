"""A regression trained with accelerate, saved by `save_state` every few steps and continued by `load_state`.

The pattern is that of https://huggingface.co/docs/accelerate/usage_guides/checkpoint (and of the example `checkpointing.py` of
accelerate): one folder `step_N` a save, whose name gives back epoch and position, and `skip_first_batches` for the rest of the
epoch. With `--automatic` the folders are those of `automatic_checkpoint_naming`, `load_state()` finds the newest by itself, and
the position is an object given to `register_for_checkpointing`. Two ranks: under `torchrun --nproc-per-node 2`.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch import nn


class Position:
    batches = 0

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=3, help="in batches; an epoch has 8")
    parser.add_argument("--automatic", action="store_true", help="automatic_checkpoint_naming")
    parser.add_argument("--total-limit", type=int)
    parser.add_argument("--set-iteration", action="store_true", help="after a load: go on counting the automatic names")
    parser.add_argument("--seedable-sampler", action="store_true")
    parser.add_argument("--stateful", action="store_true", help="torchdata's StatefulDataLoader instead of skip_first_batches")
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    project = ProjectConfiguration(str(args.out), automatic_checkpoint_naming=args.automatic, total_limit=args.total_limit)
    loading = DataLoaderConfiguration(use_seedable_sampler=args.seedable_sampler, use_stateful_dataloader=args.stateful)
    accelerator = Accelerator(
        cpu=True, project_config=project, dataloader_config=loading, gradient_accumulation_steps=args.accumulate
    )
    set_seed(11)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8 // accelerator.num_processes, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.97**step)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    position = Position()
    accelerator.register_for_checkpointing(position)

    folder = args.out / "checkpoints" if args.automatic else args.out
    saved = [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    if saved:
        newest = max(saved, key=lambda entry: int(entry.name.split("_")[1]))
        accelerator.load_state(None if args.automatic else str(newest))
        if not args.automatic:
            position.batches = int(newest.name.split("_")[1])
        if args.set_iteration:
            accelerator.project_configuration.iteration = int(newest.name.split("_")[1]) + 1
        accelerator.print(f"resuming from {newest.name} after {position.batches} batches", flush=True)

    first, skip = divmod(position.batches, 8)
    for epoch in range(first, args.epochs):
        loader.set_epoch(epoch)
        rest = accelerator.skip_first_batches(loader, skip) if epoch == first and skip and not args.stateful else loader
        for x, y in rest:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            position.batches += 1
            accelerator.print(f"step {position.batches} loss {loss.item().hex()} lr {scheduler.get_last_lr()[0]!r}", flush=True)
            if position.batches % args.save_every == 0:
                accelerator.save_state(None if args.automatic else str(args.out / f"step_{position.batches}"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
