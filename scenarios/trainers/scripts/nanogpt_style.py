"""A character model trained in one plain loop with one checkpoint file, which every save overwrites.

The pattern is that of nanoGPT (github.com/karpathy/nanoGPT, `train.py` and "finetuning / resume" in its README): batches are
drawn by `torch.randint`, the learning rate is a function of the iteration, `torch.save` writes `ckpt.pt` over the old one after
an evaluation, and the file holds model, optimizer and iteration. It continues by itself when `ckpt.pt` exists.
"""

import argparse
import math
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, BLOCK, BATCH, WIDTH = 32, 16, 8, 32


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.layer(self.token(x) + self.place.weight[: x.shape[1]], src_mask=mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1).float(), y.flatten())


def learning_rate(iteration, steps, highest=3e-3, warm_up=4):
    if iteration < warm_up:
        return highest * (iteration + 1) / (warm_up + 1)
    return highest * 0.5 * (1.1 + math.cos(math.pi * (iteration - warm_up) / max(1, steps - warm_up)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--eval-interval", type=int, default=4)
    parser.add_argument("--fp16", action="store_true", help="half precision, a gradient scaler that starts too high")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1337)
    data = torch.randint(3, (4000,), generator=torch.Generator().manual_seed(5)).cumsum(0) % VOCABULARY

    def get_batch():
        starts = torch.randint(len(data) - BLOCK - 1, (BATCH,)).tolist()
        return torch.stack([data[i : i + BLOCK] for i in starts]), torch.stack([data[i + 1 : i + 1 + BLOCK] for i in starts])

    model = CharModel()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=5, enabled=args.fp16)
    precision = torch.autocast("cpu", torch.float16) if args.fp16 else nullcontext()
    iteration, best = 0, 1e9
    if (args.out / "ckpt.pt").exists():
        checkpoint = torch.load(args.out / "ckpt.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        iteration, best = checkpoint["iter_num"], checkpoint["best_val_loss"]
        print(f"resuming from iteration {iteration}", flush=True)

    x, y = get_batch()
    while True:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(iteration, args.steps)
        if iteration > 0 and iteration % args.eval_interval == 0:
            model.eval()
            with torch.no_grad():
                best = min(best, sum(model(*get_batch()).item() for _ in range(2)) / 2)
            model.train()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "iter_num": iteration, "best_val_loss": best}, args.out / "ckpt.pt")
        if iteration >= args.steps:
            break
        with precision:
            loss = model(x, y)
        x, y = get_batch()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iteration += 1
        print(f"step {iteration} loss {loss.item().hex()}" + (f" scale {scaler.get_scale()}" if args.fp16 else ""), flush=True)


if __name__ == "__main__":
    main()
