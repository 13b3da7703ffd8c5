"""One cycle for the whole job; a restart makes one for what is left."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--cycle-of-the-rest", action="store_true")
args = parser.parse_args()

TOTAL = 30


class Fit:
    def __init__(self):
        torch.manual_seed(8)
        self.net = torch.nn.Linear(10, 3)
        self.optim = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.file = os.path.join(args.out, "fit.pt")
        self.done = 0
        saved = torch.load(self.file) if os.path.exists(self.file) else {}
        if saved:
            self.net.load_state_dict(saved["net"])
            self.done = saved["done"]
        steps = TOTAL - self.done if args.cycle_of_the_rest else TOTAL
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.optim, max_lr=0.05, total_steps=steps)
        if saved and not args.cycle_of_the_rest:
            self.sched.load_state_dict(saved["sched"])
            self.optim.load_state_dict(saved["optim"])
        elif saved:
            self.optim.state.update(zip(self.net.parameters(), saved["optim"]["state"].values()))

    def batch(self, number):
        gen = torch.Generator().manual_seed(number)
        x = torch.rand(8, 10, generator=gen)
        return x, x.argmax(1) % 3

    def run(self):
        while self.done < TOTAL:
            x, y = self.batch(self.done)
            self.optim.zero_grad()
            torch.nn.functional.cross_entropy(self.net(x), y).backward()
            self.optim.step()
            self.sched.step()
            self.done += 1
            if self.done % 7 == 0:
                self.dump()

    def dump(self):
        state = {"net": self.net.state_dict(), "optim": self.optim.state_dict(), "sched": self.sched.state_dict()}
        torch.save({**state, "done": self.done}, self.file + ".part")
        os.replace(self.file + ".part", self.file)


Fit().run()
