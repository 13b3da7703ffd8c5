"""A save that fails is a warning, because training is what matters; the last one is what people wait for."""

import argparse
import logging
from pathlib import Path

import torch
from torch import nn

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger("train")


def save(model, optimizer, step, out, make_room):
    file, temporary = out / f"model_{step:04d}.pt", out / "incoming.tmp"
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    try:
        torch.save(checkpoint, temporary)
    except (OSError, RuntimeError) as error:
        logger.warning("saving %s failed: %s", file.name, error)
        temporary.unlink(missing_ok=True)
        if not make_room:
            return
        for old in sorted(out.glob("model_*.pt"))[:-1]:
            logger.warning("making room: %s", old.name)
            old.unlink()
        torch.save(checkpoint, temporary)
    temporary.rename(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--make-room", action="store_true", help="delete old checkpoints and try again")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = 0
    for newest in sorted(args.out.glob("model_*.pt"))[-1:]:
        checkpoint = torch.load(newest)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
        logger.info("going on from %s", newest.name)
    data = torch.randn(64, 8)
    for step in range(step + 1, args.steps + 1):
        batch = data[step * 4 : step * 4 + 4]
        loss = nn.functional.mse_loss(model(batch), batch.flip(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 0:
            save(model, optimizer, step, args.out, args.make_room)


if __name__ == "__main__":
    main()
