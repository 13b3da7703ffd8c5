"""Layers are frozen for a while; what is saved of the optimizer is what is trained just then."""

import argparse
import os

import torch
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--ckpt-dir", required=True)
ap.add_argument("--save-trainable-only", action="store_true")
cfg = ap.parse_args()

TOTAL, SAVE_EVERY = 30, 5
FREEZE_FROM, FREEZE_UNTIL = 8, 17


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(10, 20)
        self.head = torch.nn.Linear(20, 5)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


def save(step):
    optim_state = {}
    for name, p in model.named_parameters():
        if cfg.save_trainable_only and not p.requires_grad:
            continue
        optim_state[name] = optimizer.state.get(p, {})
    blob = {"model": model.state_dict(), "optim": optim_state, "step": step}
    tmp = os.path.join(cfg.ckpt_dir, f"tmp-{step}.pt")
    torch.save(blob, tmp)
    os.rename(tmp, os.path.join(cfg.ckpt_dir, f"ckpt-{step}.pt"))


def load():
    found = sorted((f for f in os.listdir(cfg.ckpt_dir) if f.startswith("ckpt-")), key=lambda f: int(f[5:-3]))
    if not found:
        return 0
    blob = torch.load(os.path.join(cfg.ckpt_dir, found[-1]))
    model.load_state_dict(blob["model"])
    for name, p in model.named_parameters():
        if blob["optim"].get(name):
            optimizer.state[p] = blob["optim"][name]
    return blob["step"]


torch.manual_seed(11)
x, y = torch.randn(30, 16, 10), torch.randint(0, 5, (30, 16))
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(load(), TOTAL):
    for p in model.body.parameters():
        p.requires_grad_(not FREEZE_FROM <= step < FREEZE_UNTIL)
    loss = F.cross_entropy(model(x[step]), y[step])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
