from __future__ import annotations

import pytest
import torch

from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset
from harness.reference.world import World

BATCHES = 6
EPOCHS = 3


def read(config: TrainConfig, world: World, epoch: int = 0, taken: int = 0, order=None):
    """Reads on from a position to the end, as the loop does; returns samples and the order of the epoch, per batch."""
    loader = EpochLoader(SuccessorDataset(BATCHES * config.global_batch, config.seed), config, world)
    order = loader.order_state() if order is None else order
    found = []
    while epoch < EPOCHS:
        for indices, tokens in loader.epoch(epoch, taken, order):
            found.append((indices.tolist(), tokens.tolist(), order))
            taken += 1
            if taken == BATCHES:
                following = loader.order_state()
        epoch, taken, order = epoch + 1, 0, following
    return found


def batches(found: list) -> list:
    return [(indices, tokens) for indices, tokens, _ in found]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["random", "distributed"])
@pytest.mark.parametrize("taken", [0, 1, 4, 5])
def test_the_middle_of_an_epoch_is_found_again(sampler, taken, workers):
    config, world = TrainConfig(sampler=sampler, workers=workers), World(1, 1, 2)
    whole = read(config, world)
    assert len(whole) == EPOCHS * BATCHES
    order = whole[BATCHES + taken][2]
    torch.manual_seed(99)  # nothing of the order comes from the global generator
    resumed = read(config, world, 1, taken, None if order is None else order.clone())
    assert batches(resumed) == batches(whole[BATCHES + taken :])


@pytest.mark.parametrize("sampler", ["random", "distributed"])
def test_workers_and_ranks_do_not_change_the_order(sampler):
    alone = read(TrainConfig(sampler=sampler), World())
    first, second, third = (alone[BATCHES * epoch : BATCHES * (epoch + 1)] for epoch in range(EPOCHS))
    assert batches(first) != batches(second) != batches(third)
    for epoch in (first, second, third):
        assert sorted(sample for indices, _, _ in epoch for sample in indices) == list(range(BATCHES * 12))
    for workers, world_size in ((2, 1), (0, 3), (2, 3)):
        for rank in range(world_size):
            found = read(TrainConfig(sampler=sampler, workers=workers), World(rank, rank, world_size))
            assert [indices for indices, _, _ in found] == [indices[rank::world_size] for indices, _, _ in alone]
            assert [tokens for _, tokens, _ in found] == [tokens[rank::world_size] for _, tokens, _ in alone]


def test_only_a_random_order_needs_a_state():
    dataset = SuccessorDataset(24, 0)
    assert EpochLoader(dataset, TrainConfig(), World()).order_state() is None
    first = EpochLoader(dataset, TrainConfig(sampler="random"), World()).order_state()
    assert torch.equal(first, EpochLoader(dataset, TrainConfig(sampler="random"), World(1, 1, 2)).order_state())
    assert not torch.equal(first, EpochLoader(dataset, TrainConfig(sampler="random", seed=1), World()).order_state())
