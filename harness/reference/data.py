"""The data: a synthetic task that can be learned, its order, and the way back to a position inside an epoch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from harness.reference.world import World

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
        batches = super().__iter__()
        for _ in range(self.num_skipped):
            next(batches)
        return batches


class EpochLoader:
    """The batches of this rank, epoch by epoch.

    The order is a function of seed and epoch only. `DistributedSampler` deals it out round robin, so batch b holds the
    same samples on any number of ranks, and rank r holds rows r, r + world_size, … of it.

    Args:
        dataset: All samples; the size must be a multiple of `global_batch`, so that no rank is padded.
        global_batch: Samples per batch over all ranks, a multiple of the world size.
        seed: Of the order.
        world: This rank's place.
    """

    def __init__(self, dataset: SuccessorDataset, global_batch: int, seed: int, world: World) -> None:
        self.seed = seed
        self._sampler: DistributedSampler[tuple[int, Tensor]] = DistributedSampler(
            dataset, world.world_size, world.rank, shuffle=True, seed=seed, drop_last=True
        )
        self._batches = ResumableBatchSampler(
            cast("Iterable[int]", self._sampler), global_batch // world.world_size, drop_last=True
        )
        # An iterator over a DataLoader draws its workers' base seed. Without a generator of its own it would draw from
        # the global one, once more in a resumed run than in the uninterrupted one.
        self._loader = DataLoader(dataset, batch_sampler=self._batches, generator=torch.Generator())

    def epoch(self, epoch: int, num_skipped: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (indices (batch,), tokens (batch, time + 1)) from batch `num_skipped` of the epoch on."""
        self._sampler.set_epoch(epoch)
        self._batches.num_skipped = num_skipped
        return iter(self._loader)


def shift_tokens(tokens: Tensor) -> Tensor:
    """Augment a batch: rename every token by one cyclic shift, drawn from Python's generator.

    Args:
        tokens: (batch, time + 1) int64.
    """
    return (tokens + random.randrange(MAX_SHIFT)) % VOCABULARY
