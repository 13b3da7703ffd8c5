"""Two models that are trained against each other, each by an optimizer of its own."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--ckpt", required=True)
parser.add_argument("--generator-only-weights", action="store_true")
args = parser.parse_args()

torch.manual_seed(2)
maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-2, betas=(0.5, 0.99))
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-2, betas=(0.5, 0.99))
bce = nn.BCEWithLogitsLoss()
real = torch.randn(24, 8, 6) + 1
yes, no = torch.ones(8, 1), torch.zeros(8, 1)
file, step = os.path.join(args.ckpt, "gan.pt"), 0
if os.path.exists(file):
    saved = torch.load(file)
    maker.load_state_dict(saved["maker"])
    judge.load_state_dict(saved["judge"])
    of_judge.load_state_dict(saved["of_judge"])
    if not args.generator_only_weights:
        of_maker.load_state_dict(saved["of_maker"])
    step = saved["step"]
    torch.set_rng_state(saved["rng"])
while step < 24:
    fake = maker(torch.randn(8, 4))
    loss = bce(judge(real[step]), yes) + bce(judge(fake.detach()), no)
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
    fooled = bce(judge(fake), yes)
    of_maker.zero_grad()
    fooled.backward()
    of_maker.step()
    step += 1
    if step % 4 == 0:
        parts = {"maker": maker, "judge": judge, "of_maker": of_maker, "of_judge": of_judge}
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "step": step, "rng": torch.get_rng_state()}, file + ".tmp")
        os.replace(file + ".tmp", file)
