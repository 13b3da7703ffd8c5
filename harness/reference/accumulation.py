"""Gradient accumulation: several micro-batches make one optimizer step, as if they had been one big batch.

effective batch = micro-batch × accumulation steps × ranks. Two mistakes are common: the losses are not divided, so that
the step is accum_steps times too big; and the ranks exchange gradients after every micro-batch instead of once a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

ACCUM_GRID = (1, 2, 4, 8, 16)


def loss_scaled_for_accum(
    logits: Tensor, target: Tensor, accum_steps: int, loss_fn: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the loss of a micro-batch, divided so that the gradients of all micro-batches add up to the big batch's.

    Args:
        logits: (samples, classes).
        target: (samples,) int64.
        accum_steps: Micro-batches in an effective batch, all of one size.
        loss_fn: Gives the mean over the samples.

    Raises:
        ValueError: `accum_steps` is less than 1.
    """
    if accum_steps < 1:
        raise ValueError(f"accum_steps must be at least 1, found {accum_steps}")
    return loss_fn(logits, target) / accum_steps


@contextlib.contextmanager
def no_sync_context(model: nn.Module) -> Iterator[None]:
    """Let backward passes add up gradients on each rank without exchanging them, whatever wraps the model.

    The forward pass belongs inside too: DDP decides there whether the backward pass will exchange. The last micro-batch
    is run outside, and its exchange covers what all of them have added up.
    """
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


def effective_batch(micro_batch: int, accum_steps: int, world_size: int) -> int:
    """Return the number of samples in one optimizer step, over all ranks.

    Raises:
        ValueError: One of them is less than 1.
    """
    if min(micro_batch, accum_steps, world_size) < 1:
        raise ValueError(f"all must be at least 1, found {micro_batch}, {accum_steps}, {world_size}")
    return micro_batch * accum_steps * world_size
