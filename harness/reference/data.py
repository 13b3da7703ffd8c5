"""The data: a synthetic task that can be learned, its order, and the way back to a position inside an epoch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler

from harness.reference.devices import worker_context
from harness.reference.world import World

if TYPE_CHECKING:
    from harness.reference.config import TrainConfig

VOCABULARY = 32
SEQUENCE_LENGTH = 8
NOISE = 0.05
MAX_SHIFT = 4


class SuccessorDataset(Dataset[tuple[int, Tensor]]):
    """Sequences in which each token decides its successor through a fixed permutation, with a few errors mixed in.

    Args:
        num_samples: Number of sequences.
        seed: Of permutation and sequences; the same seed gives the same data in every process.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        # A generator of its own: making the data must not move the generators that training draws from.
        generator = torch.Generator().manual_seed(seed)
        successor = torch.randperm(VOCABULARY, generator=generator)
        tokens = torch.randint(VOCABULARY, (num_samples, SEQUENCE_LENGTH + 1), generator=generator)
        noisy = torch.rand(num_samples, SEQUENCE_LENGTH + 1, generator=generator) < NOISE
        for place in range(1, SEQUENCE_LENGTH + 1):
            tokens[:, place] = torch.where(noisy[:, place], tokens[:, place], successor[tokens[:, place - 1]])
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, self.tokens[index]


class ResumableBatchSampler(BatchSampler):
    """A `BatchSampler` that can leave out the first batches of its next epoch: their samples are never loaded."""

    num_skipped = 0

    def __iter__(self) -> Iterator[list[int]]:
        # Lazily: a DataLoader with workers makes two iterators and uses the second. If the first drew an order, the
        # second would draw another one.
        return itertools.islice(super().__iter__(), self.num_skipped, None)


class OwnSamples(Sampler[int]):
    """Every world_size-th sample of a common order, from this rank's number on: how `DistributedSampler` deals out.

    The order is taken whole at the first sample. `RandomSampler` draws once more when it is exhausted, and when that is
    depends on rank and workers, which take batches in advance: the next epoch would have another order for each.
    """

    def __init__(self, order: Sampler[int], world: World) -> None:
        self._order = order
        self._world = world

    def __iter__(self) -> Iterator[int]:
        yield from list(self._order)[self._world.rank :: self._world.world_size]


class EpochLoader:
    """The batches of this rank, epoch by epoch, in an order that does not depend on the number of ranks.

    Batch b holds the same samples on any number of ranks; rank r holds rows r, r + world_size, … of it. Two ways to
    know the order again after a restart:

    - `distributed`: `DistributedSampler`, whose order is a function of seed and epoch (`set_epoch`).
    - `random`: `RandomSampler`, whose order depends on its generator at the start of the epoch. That state must be in
      the checkpoint: in mid-epoch the generator has moved on, and restoring what it is *then* gives another order.

    Args:
        dataset: All samples; the size must be a multiple of the global batch, so that no rank is padded.
        config: `global_batch` (samples per batch over all ranks), `seed`, `sampler`, `workers`, `device` (it decides how
            workers are started; the batches are made on the CPU).
        world: This rank's place.
    """

    def __init__(self, dataset: SuccessorDataset, config: TrainConfig, world: World) -> None:
        self._order = torch.Generator().manual_seed(config.seed)  # the same on every rank
        self._distributed: DistributedSampler[tuple[int, Tensor]] | None = None
        if config.sampler == "distributed":
            sampler: Sampler[int] = DistributedSampler(
                dataset, world.world_size, world.rank, shuffle=True, seed=config.seed, drop_last=True
            )
            self._distributed = cast("DistributedSampler[tuple[int, Tensor]]", sampler)
        else:
            sampler = OwnSamples(RandomSampler(dataset, generator=self._order), world)
        self._batches = ResumableBatchSampler(sampler, config.global_batch // world.world_size, drop_last=True)
        # An iterator over a DataLoader draws its workers' base seed. Without a generator of its own it would draw from
        # the global one, once more in a resumed run than in the uninterrupted one.
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._batches,
            generator=torch.Generator(),
            num_workers=config.workers,
            multiprocessing_context=worker_context(config.device) if config.workers else None,
        )

    def order_state(self) -> Tensor | None:
        """Return what decides the order of the next epoch, beside seed and epoch; None if nothing does."""
        return None if self._distributed is not None else self._order.get_state()

    def epoch(self, epoch: int, num_skipped: int, order: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (indices (batch,), tokens (batch, time + 1)) from batch `num_skipped` of the epoch on.

        Args:
            epoch: Number of the epoch, from 0.
            num_skipped: Batches already taken; their samples are never loaded.
            order: What `order_state` returned before the epoch began.
        """
        if self._distributed is not None:
            self._distributed.set_epoch(epoch)
        elif order is not None:
            self._order.set_state(order.cpu())
        self._batches.num_skipped = num_skipped
        return iter(self._loader)


def shift_tokens(tokens: Tensor) -> Tensor:
    """Augment a batch: rename every token by one cyclic shift, drawn from Python's generator.

    Args:
        tokens: (batch, time + 1) int64.
    """
    return (tokens + random.randrange(MAX_SHIFT)) % VOCABULARY
