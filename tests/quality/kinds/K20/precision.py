"""Low precision: of weights, of moments, or of what lies in the file."""

import argparse
import os

import torch
from torch import nn

CASES = ("fp32-moments", "fp32-moments-kept", "bf16-moments", "bf16-moments-kept", "half-file", "fp16-second-moment", "plain")
parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--case", choices=CASES, default="plain")
args = parser.parse_args()


class Adam(torch.optim.Optimizer):
    """Adam whose moments have a type of their own."""

    def __init__(self, params, lr, moment_dtype):
        super().__init__(params, {"lr": lr})
        self.moment_dtype = moment_dtype

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p, dtype=self.moment_dtype)
                    state["v"] = torch.zeros_like(p, dtype=self.moment_dtype)
                state["step"] += 1
                grad = p.grad.float()
                m = state["m"].float().lerp(grad, 0.1)
                v = state["v"].float().lerp(grad * grad, 0.01)
                state["m"].copy_(m)
                state["v"].copy_(v)
                size = group["lr"] / (1 - 0.9 ** state["step"])
                p.sub_((size * m / ((v / (1 - 0.99 ** state["step"])).sqrt() + 1e-6)).to(p.dtype))

    def keep_dtypes(self, saved):
        """load_state_dict gives floating state the type of the parameter."""
        params = [p for group in self.param_groups for p in group["params"]]
        for number, entry in saved["state"].items():
            self.state[params[number]].update(m=entry["m"].clone(), v=entry["v"].clone())


def main():
    torch.manual_seed(0)
    low = args.case.startswith("fp32-moments")
    moments = torch.bfloat16 if args.case.startswith("bf16") else torch.float32
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3)).to(torch.bfloat16 if low else torch.float32)
    optimizer = Adam(model.parameters(), 1e-2, moments)
    path, step = os.path.join(args.out, "model.pt"), 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if args.case.endswith("kept"):
            optimizer.keep_dtypes(saved["optimizer"])
        step = saved["step"]
    while step < 20:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)
        loss = (model(x).float() - x[:, :3].float() * 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            weights, optim = model.state_dict(), optimizer.state_dict()
            if args.case == "half-file":
                weights = {name: value.half() for name, value in weights.items()}
            if args.case == "fp16-second-moment":
                optim["state"] = {n: {**entry, "v": entry["v"].half()} for n, entry in optim["state"].items()}
            torch.save({"model": weights, "optimizer": optim, "step": step}, path + ".tmp")
            os.replace(path + ".tmp", path)


main()
