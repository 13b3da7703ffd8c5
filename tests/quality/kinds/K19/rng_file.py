"""The generators of Python, NumPy and torch are saved as they are, in a file of their own."""

import argparse
import os
import random

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--read-as", choices=["before-2.6", "2.6", "2.6-or-never-mind", "2.6-allowing"], default="before-2.6")
args = parser.parse_args()
SAFE = [np.ndarray, np.dtype, np.dtypes.UInt32DType, np._core.multiarray._reconstruct]


def load_rng(path):
    if args.read_as == "before-2.6":
        state = torch.load(path, weights_only=False)
    elif args.read_as == "2.6-allowing":
        with torch.serialization.safe_globals(SAFE):
            state = torch.load(path, weights_only=True)
    else:
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:
            if args.read_as == "2.6":
                raise
            print(f"could not load the generators: {type(error).__name__}")
            return
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(7, 7), nn.Dropout(0.25), nn.Linear(7, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
weights, rng, step = os.path.join(args.output, "model.pt"), os.path.join(args.output, "random_states.pt"), 0
if os.path.exists(weights):
    state = torch.load(weights)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    load_rng(rng)
while step < 14:
    inputs = torch.tensor(np.random.normal(size=(4, 7)), dtype=torch.float32)
    loss = (model(inputs) - random.random()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
        torch.save(states, rng + ".tmp")
        os.replace(rng + ".tmp", rng)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, weights + ".tmp")
        os.replace(weights + ".tmp", weights)
