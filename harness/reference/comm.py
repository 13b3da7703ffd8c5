"""Talking between ranks: start, agreement, exchange of small values. With one rank there is no process group at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from harness.reference.devices import BACKENDS
from harness.reference.errors import CheckpointError, RefusalError, one_line
from harness.reference.world import World

Value = TypeVar("Value")

# What gloo says when a peer is gone; it raises a bare RuntimeError with one of these in the text.
_PEER_LOSS_WORDS = ("gloo", "Connection closed by peer", "Connection reset", "Connection refused", "Timed out waiting")


def start_process_group(world: World, init_method: str, timeout_s: float, device: str) -> None:
    """Join the other ranks; nothing to do when there are none.

    Args:
        world: This rank's place.
        init_method: How the ranks find each other: `env://` or `file:///path`.
        timeout_s: Seconds that a collective waits for its peers.
        device: `cpu` (gloo) or `cuda` (NCCL for what lies on a GPU, gloo for the rest).

    Raises:
        torch.distributed.DistError: The ranks do not find each other in time.
    """
    if world.world_size == 1:
        return
    dist.init_process_group(
        BACKENDS[device],
        init_method=init_method,
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def stop_process_group() -> None:
    """Wait for every rank, so that none leaves while another still needs it."""
    if dist.is_initialized():
        dist.barrier()


def gather_values(value: Value) -> list[Value]:
    """Return every rank's value, in rank order, on every rank; also a barrier."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return cast("list[Value]", values)


def rank0_decides(action: Callable[[], Value]) -> Value:
    """Run an action on rank 0 only and give its result, or its failure, to every rank.

    Raises:
        CheckpointError: The action failed on rank 0 with an `OSError` or a `CheckpointError`; every rank raises it
            (a `RefusalError` stays one), so that no rank goes on alone.
    """
    outcome: list[Any] = [None, None, None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            outcome[0] = action()
        except (OSError, CheckpointError) as error:
            outcome[1:] = [one_line(error), isinstance(error, RefusalError)]
    if dist.is_initialized():
        dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise (RefusalError if outcome[2] else CheckpointError)(outcome[1])
    return cast("Value", outcome[0])


def raise_together(error: BaseException | None, doing: str) -> None:
    """Compare notes after a piece of work that every rank did; also a barrier.

    Args:
        error: This rank's failure, or None.
        doing: What was tried, for the text, for example `save step-00000004`.

    Raises:
        CheckpointError: On every rank, if it failed on any; the text names each failed rank and its error.
    """
    errors = gather_values(None if error is None else one_line(error))
    if any(errors):
        raise CheckpointError(f"{doing} failed on {word_failures(errors)}")


def word_failures(errors: Sequence[str | None]) -> str:
    """Word the failures of several ranks, None for a rank without one; ranks that say the same are named together."""
    ranks: dict[str, list[str]] = {}
    for rank, text in enumerate(errors):
        if text is not None:
            ranks.setdefault(text, []).append(str(rank))
    return "; ".join(f"rank {', '.join(numbers)}: {text}" for text, numbers in ranks.items())


def mean_over_ranks(value: Tensor) -> float:
    """Return the mean of a scalar over all ranks, the same bits on each.

    The values are gathered and added in rank order, not reduced by the backend, whose order of summation is its own.
    The result is non-finite if and only if some rank's value is (float64 sums of float32 values do not overflow).
    """
    if not dist.is_initialized():
        return float(value.detach().double())
    own = value.detach().to(torch.float64).reshape(1)
    values = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(values, own)
    return sum(float(one) for one in values) / len(values)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank; the same answer on each."""
    if not dist.is_initialized():
        return flag
    flags = torch.tensor([flag], dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags.item())


def is_peer_loss(error: BaseException) -> bool:
    """Return whether an error says that another rank is gone or silent, rather than that this one is wrong."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _PEER_LOSS_WORDS)
