"""What the little trainers share: a seed, a model, data that need no file, and files that are written in one go."""

import argparse
import os
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--every", type=int, default=2)
parser.add_argument("--stop-after", type=int, default=0, help="dies there, as by SIGKILL")
parser.add_argument("--forget", default="", help="what a resume does not restore")
arguments, _ = parser.parse_known_args()


def seed(number=1):
    torch.manual_seed(number)
    torch.set_num_threads(1)


def model(dropout=0.1):
    layers = [
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(16, 4),
    ]
    return torch.nn.Sequential(*layers)


def batch(step, rows=6, shift=0):
    drawn = torch.Generator().manual_seed(1000 * shift + step)
    return torch.randn(rows, 8, generator=drawn), torch.randint(0, 4, (rows,), generator=drawn)


def say(loss):
    print(float(torch.as_tensor(loss).detach()).hex(), flush=True)


def save(state, name):
    path = os.path.join(arguments.out, name)
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def newest():
    names = [name for name in os.listdir(arguments.out) if name.startswith("step-") and name.endswith(".pt")]
    return max(names, key=lambda name: int(name[5:-3]), default=None)


def load(**parts):
    """Returns the step to go on with; restores all but what is to be forgotten."""
    name = newest()
    if name is None:
        return 0
    state = torch.load(os.path.join(arguments.out, name), weights_only=True)
    for key, part in parts.items():
        if key not in arguments.forget:
            part.load_state_dict(state[key])
    if "rng" not in arguments.forget:
        torch.set_rng_state(state["rng"])
    return state["step"]


def save_all(step, **parts):
    save(
        {key: part.state_dict() for key, part in parts.items()} | {"rng": torch.get_rng_state(), "step": step}, f"step-{step}.pt"
    )


def after(step):
    """At the end of each step: dies where it is asked to."""
    if step == arguments.stop_after:
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
