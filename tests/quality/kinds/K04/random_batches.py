"""Batches are drawn at random from one long text; the seed is set at start."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", required=True)
parser.add_argument("--seed-by-iteration", action="store_true")
args = parser.parse_args()

torch.manual_seed(1337)
text = torch.randint(0, 16, (600,))
model = torch.nn.Sequential(torch.nn.Embedding(16, 16), torch.nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ckpt_path = os.path.join(args.out_dir, "ckpt.pt")
iter_num = 0
if os.path.exists(ckpt_path):
    checkpoint = torch.load(ckpt_path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
torch.manual_seed(1337)


def get_batch():
    if args.seed_by_iteration:
        torch.manual_seed(1337 + iter_num)
    ix = torch.randint(len(text) - 9, (6,))
    x = torch.stack([text[i : i + 8] for i in ix])
    y = torch.stack([text[i + 1 : i + 9] for i in ix])
    return x, y


while iter_num < 24:
    x, y = get_batch()
    loss = torch.nn.functional.cross_entropy(model(x).view(-1, 16), y.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iter_num += 1
    if iter_num % 5 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, ckpt_path + ".tmp")
        os.replace(ckpt_path + ".tmp", ckpt_path)
