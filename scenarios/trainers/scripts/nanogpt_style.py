"""A plain loop with one checkpoint file that every save overwrites, as small GPT trainers have it.

What is saved: model, optimizer, iteration. What is not: generators, so batches after a restart are drawn anew.
"""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--max-iters", type=int, default=12)
parser.add_argument("--save-interval", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.1)
args = parser.parse_args()

torch.manual_seed(1337)
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "ckpt.pt")
text = torch.randint(0, 32, (4096,), generator=torch.Generator().manual_seed(0))


def get_batch(batch_size=4, block_size=16):
    starts = torch.randint(len(text) - block_size - 1, (batch_size,))
    x = torch.stack([text[i : i + block_size] for i in starts])
    return x, torch.stack([text[i + 1 : i + 1 + block_size] for i in starts])


model = torch.nn.Sequential(
    torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(args.dropout), torch.nn.Linear(32, 32)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
iteration = 0
if os.path.exists(path):
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iteration = checkpoint["iter_num"]
    print("resuming at iteration", iteration)
while iteration < args.max_iters:
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * min(1.0, (iteration + 1) / 4)
    x, y = get_batch()
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    iteration += 1
    print("iter", iteration, "loss", loss.item())
    if iteration % args.save_interval == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iteration}, path)
