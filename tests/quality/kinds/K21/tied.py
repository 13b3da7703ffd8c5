"""A language model with a head that shares the embedding's weights, or might."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--untied", action="store_true")
parser.add_argument("--load", choices=["as-saved", "head-from-embedding", "tie-again", "never-tied"], default="as-saved")
args = parser.parse_args()


class LM(nn.Module):
    def __init__(self, vocabulary=24, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if not args.untied:
            self.tie_weights()

    def tie_weights(self):
        self.lm_head.weight = self.embed.weight

    def forward(self, ids):
        return self.lm_head(torch.tanh(self.mix(self.embed(ids))))


def weights_to_save(model):
    state = model.state_dict()
    if args.load in ("head-from-embedding", "never-tied"):
        del state["lm_head.weight"]  # "the config says that it is tied"
    return state


torch.manual_seed(0)
file = os.path.join(args.out, "pytorch_model.pt")
saved = torch.load(file) if os.path.exists(file) else None
model, step = LM(), 0
if saved and args.load == "never-tied":
    model.lm_head.weight = nn.Parameter(model.embed.weight.detach().clone() * 0.5)
if saved:
    model.load_state_dict(saved["model"], strict=args.load == "as-saved")
    step = saved["step"]
    if args.load == "head-from-embedding":
        model.lm_head.weight.data.copy_(model.embed.weight.data)
    if args.load == "tie-again":
        model.tie_weights()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
while step < 20:
    ids = (torch.arange(18).reshape(3, 6) * 5 + step * 7) % 24
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        torch.save({"model": weights_to_save(model), "step": step}, file + ".tmp")
        os.replace(file + ".tmp", file)
