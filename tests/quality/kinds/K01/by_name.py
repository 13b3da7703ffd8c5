"""Healthy: modules change places between runs, and the optimizer's state is kept by the names of the parameters."""

import json
import os
import sys

import torch
from torch import nn

ROOT = sys.argv[1]
STATE = os.path.join(ROOT, "training_state.pt")
NAMES = ["query", "key"] if not os.path.exists(STATE) else ["key", "query"]

torch.manual_seed(3)
inputs = torch.randn(20, 4, 8)
weights = {name: torch.randn(8, 8) / 3 for name in ("query", "key")}
model = nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in NAMES})
for name in NAMES:
    model[name].weight.data.copy_(weights[name])
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
done = 0
if os.path.exists(STATE):
    saved = torch.load(STATE)
    model.load_state_dict(saved["model"])
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = saved["by_name"][name]
    done = saved["done"]


class Attention(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        q, k = self.parts["query"](x), self.parts["key"](x)
        return torch.softmax(q @ k.T, -1) @ x


attention = Attention(model)
for step in range(done, 20):
    loss = (attention(inputs[step]) - inputs[step].flip(0)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(os.path.join(ROOT, "metrics.json"), "w") as f:
        json.dump({"step": step + 1, "loss": loss.item()}, f)
    if step % 6 == 5:
        by_name = {name: dict(optimizer.state[p]) for name, p in model.named_parameters()}
        torch.save({"model": model.state_dict(), "by_name": by_name, "done": step + 1}, STATE + "~")
        os.replace(STATE + "~", STATE)
