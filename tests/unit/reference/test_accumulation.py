from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from harness.reference.accumulation import ACCUM_GRID, effective_batch, loss_scaled_for_accum, no_sync_context
from harness.reference.amp import accumulate_gradients, take_step
from harness.reference.config import TrainConfig, check_world
from harness.reference.loop import build_training
from harness.reference.world import World


def train(accumulate: int, global_batch: int = 12, steps: int = 4):
    config = TrainConfig(accumulate=accumulate, global_batch=global_batch, dropout=0.0, noise=0.0, learning_rate=1e-3)
    training = build_training(config, World())
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(32, (global_batch, 9), generator=generator)
        losses.append(take_step(training, tokens, 0.0, lambda logits: logits).global_loss)
    return training, losses


def gradients(accumulate: int, global_batch: int = 12) -> list[torch.Tensor]:
    config = TrainConfig(accumulate=accumulate, global_batch=global_batch, dropout=0.0, noise=0.0)
    training = build_training(config, World())
    tokens = torch.randint(32, (global_batch, 9), generator=torch.Generator().manual_seed(5))
    accumulate_gradients(training, tokens, 0.0, lambda logits: logits)
    return [parameter.grad for parameter in training.model.parameters()]


@pytest.mark.parametrize("accumulate", [2, 3, 4, 6, 12])
def test_micro_batches_are_one_big_batch_over_several_steps(accumulate):
    whole, losses = train(1)
    parts, found = train(accumulate)
    assert found == pytest.approx(losses, abs=1e-6)
    assert parts.state.step == whole.state.step == 4


@pytest.mark.parametrize("accumulate", ACCUM_GRID)
def test_gradients_add_up_to_those_of_the_big_batch(accumulate):
    for found, expected in zip(gradients(accumulate, 16), gradients(1, 16), strict=True):
        assert float((found - expected).abs().max()) < 1e-6


def test_the_loss_of_a_micro_batch_is_its_share():
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.equal(loss_scaled_for_accum(logits, target, 1, cross_entropy), cross_entropy(logits, target))
    parts = [loss_scaled_for_accum(logits[low : low + 2], target[low : low + 2], 3, cross_entropy) for low in (0, 2, 4)]
    assert float(sum(parts)) == pytest.approx(float(cross_entropy(logits, target)), abs=1e-6)
    for number in (0, -1):
        with pytest.raises(ValueError, match=f"accum_steps must be at least 1, found {number}"):
            loss_scaled_for_accum(logits, target, number, cross_entropy)


def test_the_size_of_an_effective_batch():
    assert effective_batch(3, 4, 2) == 24
    for sizes in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (1, -2, 1)):
        with pytest.raises(ValueError, match="all must be at least 1, found"):
            effective_batch(*sizes)


def test_a_batch_that_cannot_be_shared_is_refused():
    check_world(TrainConfig(global_batch=12, accumulate=3), World(0, 0, 4))
    with pytest.raises(ValueError, match=r"--global-batch 12 cannot be shared by 2 ranks in 4 micro-batches: .*remainder 4"):
        check_world(TrainConfig(global_batch=12, accumulate=4), World(0, 0, 2))


def test_a_model_that_nothing_wraps_needs_no_context():
    with no_sync_context(nn.Linear(1, 1)):
        pass
