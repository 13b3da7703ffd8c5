"""Activation checkpointing: forget activations in the forward pass, compute them again in the backward pass.

Memory goes down, work goes up: by a third of a step if everything is computed again. The random generator is put back
for the second pass, or dropout would draw other masks and the gradients would belong to another network.

Always `use_reentrant=False`: the re-entrant variant fails in silence when no input needs a gradient, ignores
`no_sync`, and does not work with keyword arguments. `torch.utils.checkpoint.checkpoint_sequential` is not used: it runs its
last segment without recompute, so of a model of one segment it forgets nothing.
Source: torch/utils/checkpoint.py; Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

LAYERS_PER_SEGMENT = 4
MODES = ("none", "full", "selective")


def run_layers(layers: Sequence[nn.Module], hidden: Tensor, layers_per_segment: int = LAYERS_PER_SEGMENT) -> Tensor:
    """Run layers one after the other, keeping only what enters each segment.

    Args:
        layers: Each maps a tensor to one of the same shape.
        hidden: (batch, time, width).
        layers_per_segment: Layers between two kept activations.

    Raises:
        ValueError: `layers_per_segment` is less than 1.
    """
    if layers_per_segment < 1:
        raise ValueError(f"layers_per_segment must be at least 1, found {layers_per_segment}")
    for first in range(0, len(layers), layers_per_segment):
        hidden = run_again(nn.Sequential(*layers[first : first + layers_per_segment]), hidden)
    return hidden


def run_again(function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Run one function whose inner activations are computed again in the backward pass (selective recompute)."""
    return cast("Tensor", checkpoint(function, hidden, use_reentrant=False, preserve_rng_state=True))


@contextlib.contextmanager
def activation_limit(limit_bytes: int) -> Iterator[None]:
    """Let a forward pass keep so many bytes for the backward pass and no more, as a device with little memory would.

    Each storage counts once, however many tensors look at it. What is computed again later does not count.

    Args:
        limit_bytes: 0 for no limit.

    Raises:
        MemoryError: The pass keeps more.
    """
    if not limit_bytes:
        yield
        return
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        if sum(kept.values()) > limit_bytes:
            raise MemoryError(f"activations do not fit: expected at most {limit_bytes} bytes, found {sum(kept.values())} so far")
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        yield
