"""A signal shortens the run, and what comes after the loop is done as ever."""

import argparse
import signal
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--run-dir", type=Path, required=True)
parser.add_argument("--done-means", choices=["left-the-loop", "all-steps"], default="left-the-loop")
args = parser.parse_args()
STEPS = 14


class Interrupt:
    def __init__(self):
        self.raised = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self)

    def __call__(self, number, frame):
        self.raised = True


interrupt = Interrupt()
done_file, state_file = args.run_dir / "DONE", args.run_dir / "state.pt"
torch.manual_seed(26)
model = nn.Embedding(10, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
step = 0
if state_file.exists():
    state = torch.load(state_file)
    model.load_state_dict(state["model"])
    step = state["step"]
if done_file.exists():
    print("this run is done already")
    raise SystemExit(0)


def save():
    torch.save({"model": model.state_dict(), "step": step}, state_file.with_suffix(".new"))
    state_file.with_suffix(".new").rename(state_file)


while step < STEPS and not interrupt.raised:
    loss = (model(torch.arange(10)) - step / STEPS).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        save()
save()
if args.done_means == "left-the-loop" or step == STEPS:
    done_file.touch()
