"""A trainer with one save per epoch, which restores its generators where it has skipped the batches that were done."""

import argparse
import os

import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, dataset, args):
        self.model, self.dataset, self.args = model, dataset, args
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.global_step = 0
        self.file = os.path.join(args.output_dir, "trainer.pt")

    def _save_checkpoint(self):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "global_step": self.global_step,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, self.file + ".tmp")
        os.replace(self.file + ".tmp", self.file)

    def _loader(self, epoch):
        order = torch.Generator().manual_seed(100 + epoch)
        return DataLoader(self.dataset, batch_size=8, shuffle=True, generator=order)

    def train(self):
        rng, epochs_trained, to_skip = None, 0, 0
        if os.path.exists(self.file):
            state = torch.load(self.file)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.global_step, rng = state["global_step"], state["rng"]
            epochs_trained, to_skip = divmod(self.global_step, 6)
        for epoch in range(epochs_trained, 4):
            batches = iter(self._loader(epoch))
            if to_skip:
                for _ in range(to_skip):
                    next(batches)
                to_skip = 0
                torch.set_rng_state(rng)
                rng = None
            elif rng is not None and self.args.always_restore:
                torch.set_rng_state(rng)
                rng = None
            for x, y in batches:
                loss = torch.nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.global_step += 1
                if self.global_step % self.args.save_steps == 0:
                    self._save_checkpoint()


parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--save_steps", type=int, default=6)
parser.add_argument("--always_restore", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(7, 20), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(20, 2))
Trainer(net, TensorDataset(torch.randn(48, 7), torch.randn(48, 2)), arguments).train()
