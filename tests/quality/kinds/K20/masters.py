"""A bfloat16 model, and masters in float32 that the optimizer moves."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--masters", choices=["saved", "rebuilt", "cloned-first", "moments-only"], default="saved")
args = parser.parse_args()


class Trainer:
    def __init__(self):
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).bfloat16()
        self.path, self.step = os.path.join(args.out, "state.pt"), 0
        saved = torch.load(self.path) if os.path.exists(self.path) else None
        if saved and args.masters != "cloned-first":
            self.model.load_state_dict(saved["model"])
        self.masters = [p.detach().float().clone().requires_grad_() for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters, lr=3e-3)
        if saved:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step = saved["step"]
            if args.masters == "saved":
                for master, value in zip(self.masters, saved["masters"]):
                    master.data.copy_(value)

    def update(self):
        for p, master in zip(self.model.parameters(), self.masters):
            master.grad = p.grad.float()
            p.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for p, master in zip(self.model.parameters(), self.masters):
                p.copy_(master)

    def run(self):
        while self.step < 20:
            x = torch.randn(8, 8, generator=torch.Generator().manual_seed(self.step))
            loss = (self.model(x.bfloat16()).float() - x.roll(1, 1)).square().mean()
            loss.backward()
            self.update()
            self.step += 1
            if self.step % 5 == 0:
                state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
                torch.save({**state, "masters": [m.detach() for m in self.masters]}, self.path + ".tmp")
                os.replace(self.path + ".tmp", self.path)


Trainer().run()
