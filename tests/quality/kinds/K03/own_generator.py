"""Noise is drawn from a generator of the script's own."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--keep-generator", action="store_true")
parser.add_argument("--by-step", action="store_true", help="noise by step: nothing needs to be kept")
args = parser.parse_args()


class Diffusion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.SiLU(), torch.nn.Linear(32, 8))

    def forward(self, x, level):
        return self.net(x * (1 - level))


def noise_for(step):
    if args.by_step:
        return torch.Generator().manual_seed(9000 + step)
    return generator


torch.manual_seed(0)
clean = torch.randn(16, 8)
model = Diffusion()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator()
generator.manual_seed(1234)
file, step = os.path.join(args.out, "diffusion.pt"), 0
if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    if args.keep_generator:
        generator.set_state(saved["generator"])
while step < 20:
    draw = noise_for(step)
    level = torch.rand(16, 1, generator=draw)
    noise = torch.randn(16, 8, generator=draw)
    loss = (model(clean + level * noise, level) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save({**state, "generator": generator.get_state()}, file + ".tmp")
        os.replace(file + ".tmp", file)
