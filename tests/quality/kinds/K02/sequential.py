"""SequentialLR, whose making changes the optimizer's learning rate."""

import os
import sys

import torch
from torch.optim import lr_scheduler as sched

folder, order = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "optimizer-last"
path = os.path.join(folder, "state.pt")


def make_scheduler(optimizer, done=None):
    last = -1 if done is None else done
    warm = sched.LinearLR(optimizer, start_factor=0.1, total_iters=8, last_epoch=last)
    decay = sched.ExponentialLR(optimizer, gamma=0.9, last_epoch=last)
    return sched.SequentialLR(optimizer, [warm, decay], milestones=[8], last_epoch=last)


torch.manual_seed(2)
model = torch.nn.Linear(6, 6)
features = torch.randn(8, 10, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = 0
if not os.path.exists(path):
    scheduler = make_scheduler(optimizer)
else:
    state = torch.load(path)
    model.load_state_dict(state["model"])
    step = state["step"]
    if order == "optimizer-first":
        optimizer.load_state_dict(state["optimizer"])
        scheduler = make_scheduler(optimizer)
        scheduler.load_state_dict(state["scheduler"])
    elif order == "last-epoch":
        optimizer.load_state_dict(state["optimizer"])
        scheduler = make_scheduler(optimizer, step - 1)
    else:
        scheduler = make_scheduler(optimizer)
        scheduler.load_state_dict(state["scheduler"])
        optimizer.load_state_dict(state["optimizer"])

while step < 20:
    x = features[step % 8]
    loss = (model(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    if step % 5 == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": step,
        }
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
