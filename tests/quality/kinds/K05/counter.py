"""Everything is restored; the trainer's own count of steps is another matter."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--count", choices=["restored", "reset", "moved-by-save", "saves-off"], default="restored")
args = parser.parse_args()
MAX_STEPS, BURN_IN = 22, 6


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.student = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=8e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 7, 0.5)
        self.global_step = 0
        self.batch_progress = 0
        self.file = os.path.join(args.output, "model_final.pth")

    def dump_checkpoint(self):
        step = self.global_step + 1 if args.count == "moved-by-save" else self.global_step
        return {
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "global_step": step,
            "batch_progress": self.batch_progress - 1 if args.count == "saves-off" else self.batch_progress,
            "data": self.global_step,
        }

    def restore(self):
        if not os.path.exists(self.file):
            return
        state = torch.load(self.file)
        self.student.load_state_dict(state["student"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.global_step, self.batch_progress = state["global_step"], state["batch_progress"]
        if args.count == "reset":
            self.global_step = 0

    def training_step(self):
        generator = torch.Generator().manual_seed(self.global_step)
        x = torch.randn(10, 5, generator=generator)
        loss = torch.nn.functional.cross_entropy(self.student(x), (x.sum(1) > 0).long())
        if self.global_step >= BURN_IN:
            loss = loss + 0.1 * self.student(-x).square().mean()
        return loss

    def fit(self):
        self.restore()
        while self.global_step < MAX_STEPS:
            loss = self.training_step()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.global_step += 1
            self.batch_progress += 1
            if self.batch_progress % 5 == 0:
                torch.save(self.dump_checkpoint(), self.file + ".tmp")
                os.replace(self.file + ".tmp", self.file)


Trainer().fit()
