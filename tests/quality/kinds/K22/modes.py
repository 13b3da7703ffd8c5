"""A network with dropout whose head is trained alone at first; the body is unfrozen later. Validated now and then."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--forget", choices=["train", "unfreeze"])
args = parser.parse_args()

torch.manual_seed(4)
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2))
model = nn.Sequential(body, nn.Linear(16, 1))
body.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(24, 6, 8)
targets = inputs.mean(dim=2, keepdim=True)
file, step = os.path.join(args.out, "run.pt"), 0


def validate():
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(inputs[0]), targets[0]).item()


if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    step = saved["step"]
    print("resumed at", validate())
    if args.forget != "train":
        model.train()
    if step >= 8 and args.forget != "unfreeze":
        body.requires_grad_(True)

while step < 24:
    if step == 8:
        body.requires_grad_(True)
    loss = nn.functional.mse_loss(model(inputs[step]), targets[step])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 6 == 0:
        validate()
        model.train()
    if step % 4 == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**parts, "rng": torch.get_rng_state(), "step": step}, file + ".tmp")
        os.replace(file + ".tmp", file)
