"""State is pickled over the old file; what goes wrong with the disk is said, and ends the job."""

import argparse
import os
import pickle
import sys
import time

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--workdir", required=True)
parser.add_argument("--safe", action="store_true", help="temporary file, fsync, rename")
parser.add_argument("--retries", type=int, default=0)
args = parser.parse_args()
state_file = os.path.join(args.workdir, "state.pkl")

torch.manual_seed(11)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3, momentum=0.5)
done = 0


def write(name, payload):
    with open(name, "wb", buffering=0) as file:
        view = memoryview(payload)
        while view:
            view = view[file.write(view[:2048]) :]
        os.fsync(file.fileno())


def checkpoint():
    payload = pickle.dumps({"net": net.state_dict(), "opt": opt.state_dict(), "done": done})
    if not args.safe:
        write(state_file, payload)
        return
    for attempt in range(args.retries + 1):
        try:
            write(state_file + ".tmp", payload)
            break
        except OSError as error:
            print(f"attempt {attempt}: {error}", file=sys.stderr)
            if attempt == args.retries:
                raise
            time.sleep(0.01)
    os.replace(state_file + ".tmp", state_file)


if os.path.exists(state_file):
    with open(state_file, "rb") as file:
        saved = pickle.load(file)
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    done = saved["done"]

x = torch.randn(60, 4)
while done < 15:
    batch = x[done * 4 : done * 4 + 4]
    loss = F.cross_entropy(net(batch), (batch.sum(1) > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    done += 1
    if done % 5 == 0:
        try:
            checkpoint()
        except OSError as error:
            sys.exit(f"cannot save {state_file}: {error}")
