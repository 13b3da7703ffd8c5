"""The learning rate: linear warm-up, then half a cosine down to a tenth."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

FINAL_FACTOR = 0.1


def learning_rate_factor(step: int, warmup: int, total: int) -> float:
    """Return the factor on the peak learning rate for the update that follows `step` completed ones.

    Args:
        step: Completed optimizer updates, from 0.
        warmup: Updates over which the rate rises linearly; the first update already has 1/warmup of the peak.
        total: Updates planned for the job; from there on the factor stays `FINAL_FACTOR`.
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return FINAL_FACTOR + (1.0 - FINAL_FACTOR) * 0.5 * (1.0 + math.cos(math.pi * progress))


def build_scheduler(optimizer: Optimizer, warmup: int, total: int) -> LambdaLR:
    """Build the scheduler; it counts optimizer updates, so it must not be stepped for a skipped batch."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, warmup, total))
