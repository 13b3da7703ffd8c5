"""A gradual warm-up around another scheduler, kept in the checkpoint as an object, with the optimizer that it holds."""

import os
import sys

import torch
from torch.optim.lr_scheduler import LRScheduler, StepLR

OUT = sys.argv[1]
REBIND = "--rebind" in sys.argv
FILE = os.path.join(OUT, "model.ckpt")


class GradualWarmup(LRScheduler):
    def __init__(self, optimizer, steps, after):
        self.steps = steps
        self.after = after
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch > self.steps:
            return self.after.get_last_lr()
        return [base * (self.last_epoch + 1) / (self.steps + 1) for base in self.base_lrs]

    def step(self, epoch=None):
        if self.last_epoch > self.steps:
            self.after.step()
            self.last_epoch += 1
            self._last_lr = self.after.get_last_lr()
            return
        super().step()


def main():
    torch.manual_seed(6)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ELU(), torch.nn.Linear(8, 6))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    start = 0
    if os.path.exists(FILE):
        saved = torch.load(FILE, weights_only=False)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler = saved["scheduler"]
        if REBIND:
            scheduler.optimizer = scheduler.after.optimizer = optimizer
        start = saved["step"]
    else:
        scheduler = GradualWarmup(optimizer, 6, StepLR(optimizer, 4, 0.5))
    for step in range(start, 24):
        x = torch.linspace(-1, 1, 48).reshape(8, 6) * (1 + step % 5)
        loss = (net(x) - x.cos()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % 8 == 0:
            for one in (scheduler, scheduler.after):  # the wrapper that counts calls cannot be pickled
                one.optimizer.__dict__.pop("step", None)
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler, "step": step + 1}
            torch.save(state, FILE + ".tmp")
            os.replace(FILE + ".tmp", FILE)


if __name__ == "__main__":
    main()
