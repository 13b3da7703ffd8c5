"""The order of scaling, clipping, stepping and moving the schedule."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--clip-scaled", action="store_true")
parser.add_argument("--schedule-always", action="store_true")
parser.add_argument("--scale", type=float, default=256.0)
args = parser.parse_args()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.6)
scaler = torch.amp.GradScaler("cpu", init_scale=args.scale, growth_interval=1000)
path, step = os.path.join(args.out, "state.pt"), 0
parts = {"net": net, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
if os.path.exists(path):
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    step = saved["step"]
while step < 20:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x).float(), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if not args.clip_scaled:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if args.schedule_always or scaler.get_scale() >= scale:
        scheduler.step()
    step += 1
    if step % 5 == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
