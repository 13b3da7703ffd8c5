"""Weights and moments are copied into buffers that are made once, and written file by file to slow storage."""

import argparse
import threading
import time
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--wait", choices=["before-write", "before-copy"], default="before-write")
args = parser.parse_args()

torch.manual_seed(15)
model = nn.Linear(12, 12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
buffers = {name: torch.empty_like(value) for name, value in model.named_parameters()}
momenta = {name: torch.empty_like(value) for name, value in model.named_parameters()}
lock, writer = threading.Lock(), None
weights_written = threading.Event()


def write(step):
    with lock:
        folder = args.out / f"incoming-{step}"
        folder.mkdir(exist_ok=True)
        torch.save(buffers, folder / "weights.pt")
        weights_written.set()
        time.sleep(0.7)  # the link to the storage
        torch.save({"momenta": momenta, "step": step}, folder / "optimizer.pt")
        folder.rename(args.out / f"ckpt-{step}")


def save(step):
    global writer
    if args.wait == "before-copy" and writer is not None:
        writer.join()
    for name, value in model.named_parameters():
        buffers[name].copy_(value.detach())
        momenta[name].copy_(optimizer.state[value]["momentum_buffer"])
    weights_written.clear()
    writer = threading.Thread(target=write, args=(step,))
    writer.start()
    if step == 3:
        weights_written.wait()  # the first save is watched: its weights are in the file


step = 0
whole = sorted(args.out.glob("ckpt-*"), key=lambda folder: int(folder.name[5:]))
if whole:
    state = torch.load(whole[-1] / "optimizer.pt")
    model.load_state_dict(torch.load(whole[-1] / "weights.pt"))
    for name, value in model.named_parameters():
        optimizer.state[value]["momentum_buffer"] = state["momenta"][name]
    step = state["step"]
data = torch.randn(16, 4, 12)
while step < 12:
    loss = (model(data[step]) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        save(step)
if writer is not None:
    writer.join()
