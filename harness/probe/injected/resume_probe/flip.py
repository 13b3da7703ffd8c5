"""Changes the last bit of every weight: the smallest difference that there is, to see what training makes of it.

Responsible for: the change. Not responsible for: when (`HARNESS_FLIP_AFTER_BATCH`, docs/event-log.md), or what is read off the
losses that follow (`harness.oracle.noise`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

VARIABLE = "HARNESS_FLIP_AFTER_BATCH"
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip_last_bits(tensors: Iterable[torch.Tensor]) -> int:
    """Flips the last bit of each number, in place; of a tensor that is split over ranks, of the part that is here.

    Args:
        tensors: those that are there twice are changed once.

    Returns:
        How many numbers were changed; whole and complex numbers are left alone.
    """
    done: set[tuple[int, int]] = set()
    count = 0
    for tensor in tensors:
        local: Any = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        place = (local.data_ptr(), local.numel())
        if not local.is_floating_point() or local.numel() == 0 or place in done:
            continue
        done.add(place)
        with torch.no_grad():
            local.view(_WHOLE[local.element_size()]).bitwise_xor_(1)
        count += local.numel()
    return count


def flip_after(text: str | None) -> int | None:
    """The number of batches after which it is to be done, as the variable says it; None for never."""
    return int(text) if text else None
