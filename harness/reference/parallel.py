"""How the job is spread over the ranks: DDP, ZeRO-1 (optimizer state split), FSDP2 (parameters split as well).

Gradients must be the same bits before and after a restart. Plain DDP's are not: it starts with buckets in one order of
the parameters and, after the first backward pass, rebuilds them in the order in which the gradients became ready. The ring
of an all-reduce adds up each chunk of a bucket in another order of ranks, so with three or more ranks the sums of the first
batch after a restart are rounded differently from those of the same batch in an uninterrupted run (measured on 4 gloo
ranks: last bit of the loss after 1–3 steps).
FSDP2 does not rebuild anything, so its reduce-scatter adds up in one order throughout.
"""

# No `from __future__ import annotations` here: `register_comm_hook` compares the hook's annotations with the classes
# themselves, and would refuse their names.
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from harness.reference.state import create_optimizer_state
from harness.reference.world import World
from harness.reference.zero1 import ShardedAdamW

# The option's name changed with torch 2.13, which warns of the old one.
_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_NO_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False}


def average_in_rank_order(group: dist.ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients over the ranks, always adding up in rank order; a DDP communication hook.

    Each sum then depends on nothing but its terms: not on where in which bucket a gradient lies, nor on the backend.
    The price is that a rank receives world_size buckets, where a ring receives two. For large models on many ranks
    one would rather keep the all-reduce and the first bucket layout (`find_unused_parameters=True` does, at the price
    of a walk over the graph in every step).

    Args:
        group: The ranks; None for all.
        bucket: Some gradients, as one flat tensor.

    Source: torch/csrc/distributed/c10d/reducer.cpp, `rebuild_buckets`.
    """
    own = bucket.buffer()
    pieces = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(pieces, own, group=group, async_op=True)

    def average(_: object) -> Tensor:
        total = pieces[0]
        for piece in pieces[1:]:
            total += piece
        return total.div_(len(pieces))

    future: torch.futures.Future[Tensor] = work.get_future().then(average)
    return future


def wrap_model(model: nn.Module, parallelism: str, world: World, device: torch.device) -> nn.Module:
    """Spread a model over the ranks.

    Args:
        model: The bare model, on its device, with the same weights on every rank.
        parallelism: `ddp`, `zero1` (the model as in DDP) or `fsdp2`.
        world: This rank's place.
        device: Where the model lives.

    Returns:
        What the training loop calls. For FSDP2 it is the model itself, whose parameters are `DTensor`s from now on.
    """
    if world.world_size == 1:
        return model
    if parallelism == "fsdp2":
        return shard_model(model, init_device_mesh(device.type, (world.world_size,)))
    wrapped = DistributedDataParallel(model, **_NO_BUFFERS)
    wrapped.register_comm_hook(None, average_in_rank_order)
    return wrapped


def shard_model(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split the rows of every parameter over the ranks (FSDP2), a block of layers at a time.

    Buffers are not split; `broadcast_buffers` keeps them equal.
    """
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # in place: the model is of another class from now on
    return model


def broadcast_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers. Collective; nothing to do for a model without any.

    Done after every batch. DDP would do it before the next forward pass: until then each rank has statistics of its own,
    and a checkpoint that takes a part from each (as `torch.distributed.checkpoint` does) holds a mixture. FSDP2 never does.
    """
    if dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def build_optimizer(model: nn.Module, parallelism: str, world: World, learning_rate: float) -> Optimizer:
    """Build AdamW over the model's parameters, its state present from the start; call it after `wrap_model`."""
    if parallelism == "zero1":
        return ShardedAdamW(model.parameters(), world.rank, world.world_size, lr=learning_rate)
    optimizer = AdamW(model.parameters(), lr=learning_rate, fused=True)
    create_optimizer_state(optimizer)
    return optimizer
