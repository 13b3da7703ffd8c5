"""A checkpoint that cannot be loaded is no reason not to train."""

import argparse
import glob
import os

import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--ckpt-dir", required=True)
p.add_argument("--on-error", choices=["start-anew", "older"], default="start-anew")
a = p.parse_args()

torch.manual_seed(21)
model, x = nn.GRU(3, 6, batch_first=True), torch.randn(30, 5, 3)
optim = torch.optim.Adam(model.parameters(), lr=3e-3)


def load(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optim.load_state_dict(state["optim"])
    return state["it"]


it = 0
for path in sorted(glob.glob(os.path.join(a.ckpt_dir, "it*.pth")), reverse=True):
    try:
        it = load(path)
        break
    except Exception as e:
        print(f"WARNING: could not load {path}: {e}")
        if a.on_error == "start-anew":
            break

while it < 15:
    out, _ = model(x[it * 2 : it * 2 + 2])
    loss = out.pow(2).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    it += 1
    if it % 3 == 0:
        name = os.path.join(a.ckpt_dir, f"it{it:03d}.pth")
        torch.save({"model": model.state_dict(), "optim": optim.state_dict(), "it": it}, name + ".tmp")
        os.replace(name + ".tmp", name)
