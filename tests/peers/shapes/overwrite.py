"""A script as many are: one checkpoint file, overwritten by every save; with `--atomic` by a temporary file and a rename."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--atomic", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "ckpt.pt")
step = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
print("resumed from step", step)
while step < 12:
    x = rows[step * 4 % 64 :][:4]
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        target = path + ".tmp" if args.atomic else path
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, target)
        if args.atomic:
            os.replace(target, path)
torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
