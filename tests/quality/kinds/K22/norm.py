"""Statistics of a normalisation: left out of the file, made too late to be loaded, or kept."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--statistics", choices=["saved", "parameters-only", "lazy"], default="saved")
parser.add_argument("--validate", action="store_true", help="the best epoch is chosen by the statistics")
args = parser.parse_args()


class LazyNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.mean is None:
            self.mean = torch.zeros(x.shape[1])
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


torch.manual_seed(0)
norm = LazyNorm() if args.statistics == "lazy" else nn.BatchNorm1d(12)
model = nn.Sequential(nn.Linear(6, 12), norm, nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
path, step = os.path.join(args.out, "weights.pt"), 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"], strict=False)
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
history = []
while step < 20:
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(step)) + 2
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 2).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    step += 1
    if step % 5 == 0:
        model.eval()
        with torch.no_grad():
            print(f"{step}: train {sum(history) / len(history):.3f} valid {model(x).softmax(1).max().item():.3f}", flush=True)
        model.train()
        weights = model.state_dict()
        if args.statistics == "parameters-only":
            weights = {name: value.detach() for name, value in model.named_parameters()}
        torch.save({"model": weights, "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
