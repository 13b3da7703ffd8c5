"""Ranks agree: on what is skipped, on norms and scales, on buffers, and on the failure of a save in the background."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from test_reference_parallel import PARALLELISMS, batches_of, same

from harness.probe.numeric import NumericFault, apply_numeric_faults
from harness.reference import dcp_async
from harness.reference.amp import has_non_finite_grad, take_step
from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.loop import build_training
from harness.reference.world import World

BAD_BATCH = 3


def train_with_faults(world: World, configs: list[TrainConfig], effect: str) -> list[list[dict]]:
    """For each configuration and batch: what became of it, and what the rank holds afterwards."""
    fault = NumericFault(effect, (1,), BAD_BATCH, 1)
    return [[*train_with_fault(world, config, fault)] for config in configs]


def train_with_fault(world: World, config: TrainConfig, fault: NumericFault):
    training = build_training(config, world)
    for number, tokens in enumerate(batches_of(config, world, 5), 1):
        change = functools.partial(apply_numeric_faults, (fault,), batch=number, rank=world.rank)
        outcome = take_step(training, tokens, 0.1, change)
        yield {
            # As text: NaN is not equal to itself.
            "common": [str(outcome.reason), repr(outcome.grad_norm), repr(outcome.global_loss), str(outcome.scale)],
            "scale": training.scaler.get_scale(),
            "buffers": {name: buffer.tolist() for name, buffer in training.model.named_buffers()},
            "step": training.state.step,
        }


@pytest.mark.parametrize("parallelism", PARALLELISMS)
@pytest.mark.parametrize(
    ("effect", "reason"), [("overflow", "non_finite_loss"), ("nan", "non_finite_loss"), ("nonfinite-grad", "non_finite_grad")]
)
def test_a_bad_batch_on_one_rank_is_skipped_and_counted_alike(ranks, parallelism, effect, reason):
    settings = {"parallelism": parallelism, "precision": "fp16", "model": "mlp"}
    configs = [TrainConfig(accumulate=accumulate, **settings) for accumulate in (1, 3)]
    first, second = ranks.run(train_with_faults, 2, configs, effect)
    for one, other in zip(first, second, strict=True):
        assert one == other  # reasons, norms, losses, scales and buffers
        assert [batch["common"][0] for batch in one] == ["None", "None", reason, "None", "None"]
        assert [batch["step"] for batch in one] == [1, 2, 2, 3, 4]
        assert [batch["scale"] for batch in one] == [1024.0, 1024.0, 512.0, 512.0, 512.0]
        assert one[BAD_BATCH - 1]["buffers"] == one[BAD_BATCH - 2]["buffers"]
        assert one[BAD_BATCH]["buffers"] != one[BAD_BATCH - 1]["buffers"]
        assert all(math.isfinite(float(batch["common"][1])) for batch in (one[0], one[3], one[4]))


def overflow_in_one_part(world: World) -> tuple[bool, float]:
    """One infinite gradient in the part of the last rank: what every rank is told of it."""
    training = build_training(TrainConfig(parallelism="fsdp2", precision="fp16"), world)
    scaler, optimizer = training.scaler, training.optimizer
    take_step(training, batches_of(training.config, world, 1)[0], 0.0, same)
    optimizer.zero_grad()
    scaler.scale(training.wrapped(torch.zeros(4, 8, dtype=torch.int64), 0.0).sum()).backward()
    if world.rank == world.world_size - 1:
        next(training.model.parameters()).grad.to_local().view(-1)[0] = math.inf
    scaler.unscale_(optimizer)
    bad = has_non_finite_grad(training.model.parameters())
    scaler.update()
    return bad, scaler.get_scale()


def test_an_overflow_in_the_part_of_one_rank_is_known_to_all(ranks):
    assert ranks.run(overflow_in_one_part, 3) == [(True, 512.0)] * 3


class BrokenWriter(dcp_async.PlainWriter):
    def write_data(self, plan, planner):
        raise OSError(28, "No space left on device")


def fail_in_the_background(world: World, out: Path, failing_rank: int) -> dict:
    config = TrainConfig(format="dcp-async", out=out)
    training, store = build_training(config, world), load_format(config)
    training.state.batch = 4
    store.save(training, out / "step-00000004")
    assert store.finish(wait=True)
    if world.rank == failing_rank:
        dcp_async.PlainWriter = BrokenWriter
    training.state.batch = 8
    returned = store.save(training, out / "step-00000008")
    error = ""
    try:
        store.finish(wait=True)
    except CheckpointError as caught:
        error = str(caught)
    return {"returned": returned, "error": error, "idle": store.finish(wait=False)}


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_save_that_fails_in_the_background_fails_on_all(ranks, tmp_path, failing_rank):
    for found in ranks.run(fail_in_the_background, 2, tmp_path, failing_rank):
        assert found["returned"] is False
        assert f"rank {failing_rank}: " in found["error"]
        assert "No space left on device" in found["error"]
        assert found["idle"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]
    assert load_format(TrainConfig(format="dcp-async")).verify(tmp_path / "step-00000004").world_size == 2


def norm_after_a_skip(world: World, parallelism: str) -> list[str]:
    """The norm of the batch after one that was cut short at its first, and at its second micro-batch."""
    norms = []
    for struck in (0, 1):
        config = TrainConfig(parallelism=parallelism, accumulate=3, dropout=0.0, noise=0.0)
        training, calls = build_training(config, world), iter(range(9))
        bad, good = batches_of(config, world, 2)
        outcome = take_step(
            training, bad, 0.0, lambda logits, calls=calls, at=struck: logits * (math.nan if next(calls) == at else 1)
        )
        assert outcome.reason == "non_finite_loss"
        norms.append(repr(take_step(training, good, 0.0, same).grad_norm))
    return norms


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_nothing_of_a_batch_that_was_cut_short_goes_into_the_next(ranks, parallelism):
    for first, second in ranks.run(norm_after_a_skip, 2, parallelism):
        assert first == second
