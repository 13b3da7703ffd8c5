"""Learning rates are lowered by hand at milestones; the resumed optimizer gets the one of the command line."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser(description="train")
parser.add_argument("--resume-dir", required=True)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--override-lr", action="store_true")
args = parser.parse_args()
ckpt = os.path.join(args.resume_dir, "checkpoint.pth.tar")


def adjust_learning_rate(optimizer, epoch):
    if epoch in (1, 3):
        for group in optimizer.param_groups:
            group["lr"] *= 0.1


def main():
    torch.manual_seed(0)
    images, labels = torch.randn(48, 20), torch.randint(0, 4, (48,))
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    start_epoch = 0
    if os.path.isfile(ckpt):
        print(f"=> loading checkpoint '{ckpt}'")
        checkpoint = torch.load(ckpt)
        start_epoch = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if args.override_lr:
            for group in optimizer.param_groups:
                group["lr"] = args.lr
    for epoch in range(start_epoch, 5):
        adjust_learning_rate(optimizer, epoch)
        for i in range(0, 48, 8):
            loss = nn.functional.cross_entropy(model(images[i : i + 8]), labels[i : i + 8])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, ckpt + ".new")
        os.replace(ckpt + ".new", ckpt)


if __name__ == "__main__":
    main()
