"""accelerate's `save_state` and `load_state` in the middle of an epoch, with `skip_first_batches`.

The way to save and resume is that of its documentation ("Checkpointing").
"""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--max-steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=4)
parser.add_argument("--total-limit", type=int, default=None)
parser.add_argument("--seedable", action="store_true")
parser.add_argument("--stateful", action="store_true")
args = parser.parse_args()

accelerator = Accelerator(
    cpu=True,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=args.seedable, use_stateful_dataloader=args.stateful),
    project_config=ProjectConfiguration(project_dir=args.out, automatic_checkpoint_naming=False, total_limit=args.total_limit),
)
torch.manual_seed(0)
rows = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

step = 0
found = sorted((int(name[5:]) for name in os.listdir(args.out) if name.startswith("step_")), reverse=True)
if found:
    accelerator.load_state(os.path.join(args.out, f"step_{found[0]}"))
    step = found[0]
while step < args.max_steps:
    epoch, begun = divmod(step, len(loader))
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    active = accelerator.skip_first_batches(loader, begun) if begun and not args.stateful else loader
    for (x,) in active:
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        print("step", step, "loss", loss.item())
        if step % args.save_steps == 0:
            accelerator.save_state(os.path.join(args.out, f"step_{step}"))
        if step >= args.max_steps:
            break
