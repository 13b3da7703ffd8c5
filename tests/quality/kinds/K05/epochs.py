"""Epochs of a fixed length and saves within them; what the restart makes of the number of the epoch."""

import argparse
import os

import torch

MODES = ("right", "boundary-empty", "not-incremented", "rest-dropped", "stop-at-end-of-data")
parser = argparse.ArgumentParser()
parser.add_argument("--project-dir", required=True)
parser.add_argument("--mode", choices=MODES, default="right")
parser.add_argument("--save-freq", type=int, default=6)
args = parser.parse_args()
EPOCHS, PER_EPOCH = 4, 6


class Loader:
    """Goes on within an epoch where it was."""

    def __init__(self):
        self.rows = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
        self.next = 0

    def __iter__(self):
        while self.next < PER_EPOCH:
            self.next += 1
            yield self.order()[self.next - 1]
        self.next = 0

    def order(self):
        generator = torch.Generator().manual_seed(epoch)
        return self.rows[torch.randperm(24, generator=generator)].split(4)


torch.manual_seed(0)
loader = Loader()
model = torch.nn.Linear(6, 6)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
file = os.path.join(args.project_dir, "latest_checkpointed.pt")
epoch = step = 0
resumed_at_start = False


def save():
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step, "next": loader.next}
    torch.save(state, file + ".tmp")
    os.replace(file + ".tmp", file)


if os.path.exists(file):
    state = torch.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch, step, loader.next = state["epoch"], state["step"], state["next"]
    if loader.next == PER_EPOCH and args.mode in ("right", "boundary-empty", "stop-at-end-of-data"):
        resumed_at_start = True
    if args.mode == "boundary-empty" and loader.next == PER_EPOCH:
        epoch = step // PER_EPOCH  # the next one, with a loader that stands at the end of its epoch
    if args.mode == "not-incremented" and loader.next == PER_EPOCH:
        loader.next = 0
    if args.mode == "rest-dropped":
        epoch, loader.next = epoch + 1, 0

while epoch < EPOCHS:
    batches = 0
    for x in loader:
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        batches += 1
        if step % args.save_freq == 0:
            save()
    if batches == 0 and args.mode == "stop-at-end-of-data":
        print("end of data reached")
        break
    epoch += 1
