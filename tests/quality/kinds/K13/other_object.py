"""The loss module is made with the model; the trainer loads the checkpoint."""

import argparse
from pathlib import Path

import torch
from torch import nn


class ContrastiveLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.scale = 20.0

    def forward(self, a, b):
        scores = self.model(a) @ self.model(b).T * self.scale
        return nn.functional.cross_entropy(scores, torch.arange(len(a)))


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return nn.functional.normalize(super().forward(x), dim=1)


class Trainer:
    def __init__(self, model, loss, out, load_into):
        self.model, self.loss, self.out, self.load_into = model, loss, out, load_into
        self.optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    def resume(self):
        found = sorted(self.out.glob("checkpoint-*.pt"))
        if not found:
            return 0
        state = torch.load(found[-1])
        if self.load_into == "new-object":
            self.model = Encoder()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def train(self, pairs):
        for step in range(self.resume(), len(pairs)):
            loss = self.loss(*pairs[step])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if (step + 1) % 4 == 0:
                state = {"model": self.loss.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step + 1}
                file = self.out / f"checkpoint-{step + 1:03d}.pt"
                torch.save(state, file.with_suffix(".tmp"))
                file.with_suffix(".tmp").rename(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--load-into", choices=["new-object", "same-object"], default="new-object")
    options = parser.parse_args()
    torch.manual_seed(99)
    encoder = Encoder()
    Trainer(encoder, ContrastiveLoss(encoder), options.output_dir, options.load_into).train(torch.randn(14, 2, 6, 12))
