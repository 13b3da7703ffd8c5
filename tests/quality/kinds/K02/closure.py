"""The learning rate is a function of the step, without any scheduler."""

import argparse
import math
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", required=True)
parser.add_argument("--warmup-after-restart", action="store_true")
config = parser.parse_args()

learning_rate, min_lr, warmup_iters, max_iters = 3e-2, 3e-3, 6, 26


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


torch.manual_seed(1337)
table = torch.nn.Embedding(32, 32)
optimizer = torch.optim.AdamW(table.parameters(), lr=learning_rate, betas=(0.9, 0.95))
ckpt_path = os.path.join(config.out_dir, "ckpt.pt")
iter_num = 0
if os.path.exists(ckpt_path):
    checkpoint = torch.load(ckpt_path)
    table.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]

local_iter_num = 0
while iter_num < max_iters:
    lr = get_lr(local_iter_num if config.warmup_after_restart else iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    ids = (torch.arange(16) * 7 + iter_num * 3) % 32
    loss = torch.nn.functional.cross_entropy(table(ids), (ids * 5 + 1) % 32)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iter_num += 1
    local_iter_num += 1
    if iter_num % 6 == 0:
        checkpoint = {"model": table.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(checkpoint, ckpt_path + ".tmp")
        os.replace(ckpt_path + ".tmp", ckpt_path)
