"""Data parallelism whose gradients are the same bits before and after a restart.

Plain DDP is not: it starts with buckets in one order of the parameters and, after the first backward pass, rebuilds
them in the order in which the gradients became ready. The ring of an all-reduce adds up each chunk of a bucket in
another order of ranks, so with three or more ranks the sums of the first batch after a restart are rounded differently
from those of the same batch in an uninterrupted run (measured on 4 gloo ranks: last bit of the loss after 1–3 steps).
"""

# No `from __future__ import annotations` here: `register_comm_hook` compares the hook's annotations with the classes
# themselves, and would refuse their names.
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel


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


def wrap_model(model: nn.Module, world_size: int) -> nn.Module:
    """Return the model inside DDP, or the model itself if there is one rank only."""
    if world_size == 1:
        return model
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, average_in_rank_order)
    return wrapped
