"""Mixed precision in float16 with a loss scale that finds its place."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--scaler", choices=["saved", "forgotten", "made-again", "dummy-step", "scale-only"], default="saved")
parser.add_argument("--init-scale", type=float, default=2.0**16)
parser.add_argument("--growth", type=int, default=40, help="updates without overflow until the scale is doubled")
parser.add_argument("--bf16", action="store_true", help="no scaler at all")
args = parser.parse_args()
dtype = torch.bfloat16 if args.bf16 else torch.float16


def new_scaler():
    return torch.amp.GradScaler("cpu", init_scale=args.init_scale, growth_interval=args.growth, enabled=not args.bf16)


torch.manual_seed(0)
x, y = torch.randn(200, 16), torch.randn(200, 4) * 3
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
scaler = new_scaler()
path, start = os.path.join(args.out, "amp.pt"), 0
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
if os.path.exists(path):
    saved = torch.load(path)
    for name in ("model", "scheduler"):
        parts[name].load_state_dict(saved[name])
    start = saved["step"]
    if args.scaler in ("saved", "made-again", "dummy-step"):
        scaler.load_state_dict(saved["scaler"])
    if args.scaler == "scale-only":
        scaler.load_state_dict({**saved["scaler"], "_growth_tracker": 0})
    if args.scaler == "made-again":
        parts["scaler"] = scaler = new_scaler()
    if args.scaler == "dummy-step":
        # The state of a lazy optimizer is made by a step with gradients of zero, through the wrapper that also moves the scale.
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    optimizer.load_state_dict(saved["optimizer"])

for step in range(start, 30):
    rows = slice(step * 8 % 200, step * 8 % 200 + 8)
    with torch.autocast("cpu", dtype=dtype):
        loss = nn.functional.mse_loss(model(x[rows]).float(), y[rows])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()
    if (step + 1) % 5 == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "step": step + 1}, path + ".tmp")
        os.replace(path + ".tmp", path)
    if os.environ.get("SHOW"):
        print(step + 1, before, scaler.get_scale(), loss.item())
