"""An epoch-wise Trainer with accumulation, which skips what it has done: steps, or batches."""

import argparse
import os

import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, args):
        torch.manual_seed(2)
        self.args, self.accumulation = args, 3
        self.data = TensorDataset(torch.randn(72, 5), torch.randint(0, 4, (72,)))
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.ReLU(), torch.nn.Linear(20, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.global_step = 0
        self.path = os.path.join(args.output_dir, "trainer_state.pt")

    def loader(self, epoch):
        return DataLoader(self.data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(epoch))

    def train(self):
        if os.path.exists(self.path):
            state = torch.load(self.path)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.global_step = state["global_step"]
        steps_per_epoch = 18 // self.accumulation
        epoch, skip = divmod(self.global_step, steps_per_epoch)
        if not self.args.skip_steps:
            skip *= self.accumulation
        while epoch < 3:
            for number, (x, y) in enumerate(self.loader(epoch)):
                if number < skip:
                    continue
                loss = torch.nn.functional.cross_entropy(self.model(x), y) / self.accumulation
                loss.backward()
                if (number + 1) % self.accumulation == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.global_step += 1
                    if self.global_step % 4 == 0:
                        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                        torch.save({**parts, "global_step": self.global_step}, self.path + ".tmp")
                        os.replace(self.path + ".tmp", self.path)
            epoch, skip = epoch + 1, 0


parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--skip_steps", action="store_true")
Trainer(parser.parse_args()).train()
