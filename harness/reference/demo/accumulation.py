"""1, 2, 4, 8 and 16 micro-batches make the same step as one big batch, and exchange gradients once for it.

Two ranks, a batch of 32 samples, thus 16 a rank: with 16 micro-batches each holds one sample. There is no dropout and no noise,
since the draws of a big batch are not those of small ones. What is left is the order in which float32 sums are added up, so
losses may differ in their last digits: by less than 1e-6 over the ten steps that are compared.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._C._distributed_c10d import GradBucket

from harness.reference import parallel
from harness.reference.accumulation import ACCUM_GRID
from harness.reference.comm import start_process_group, stop_process_group
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset
from harness.reference.demo.command import DemoError, build_parser, conclude, lacks_device, workplace
from harness.reference.demo.processes import fork_ranks
from harness.reference.hooks import TrainingHooks
from harness.reference.loop import build_training, train_batch
from harness.reference.world import World

RANKS, GLOBAL_BATCH = 2, 32
SWEEP_STEPS, CURVE_STEPS, CURVE_COUNTS = 10, 100, (1, 2)
TOLERANCE = 1e-6


def main(argv: Sequence[str]) -> int:
    """Run the demo; return its exit code."""
    options = build_parser("accumulation", format="single").parse_args(argv)
    torch.set_num_threads(1)
    with workplace(options.out) as place:
        try:
            with fork_ranks(
                lambda world: sweep(world, place, options.device, tuple(options.defect)), RANKS, place / "log"
            ) as ranks:
                ranks.succeed()
        except DemoError as error:
            return conclude("accumulation", [str(error)])
        found = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    losses = {count: found[0][str(count)]["losses"] for count in ACCUM_GRID}
    exchanges = {count: [one[str(count)]["exchanges"] for one in found] for count in ACCUM_GRID}
    print_sweep(losses, exchanges)
    print_curves(losses)
    return conclude("accumulation", judge(losses, exchanges), f"largest difference {worst(losses):.1e}, 1 exchange a step")


def sweep(world: World, place: Path, device: str, defects: tuple[str, ...]) -> int:
    """Be one rank: train with each number of micro-batches from the same start, and write down what was seen."""
    if lacks_device(device, world):
        return 2
    start_process_group(world, f"file://{place}/meeting", timeout_s=60.0, device=device)
    found = {str(count): train(world, count, device, defects) for count in ACCUM_GRID}
    (place / f"rank-{world.rank}.json").write_text(json.dumps(found))
    stop_process_group()
    return 0


def train(world: World, count: int, device: str, defects: tuple[str, ...]) -> dict[str, Any]:
    """Train with `count` micro-batches; return the mean loss of every step and the number of exchanges in every step."""
    config = TrainConfig(
        steps=CURVE_STEPS,
        global_batch=GLOBAL_BATCH,
        dropout=0.0,
        noise=0.0,
        accumulate=count,
        device=device,
        defect=defects,
        width=16,
    )
    losses, exchanges = [], []
    with counted_exchanges() as counter:
        training = build_training(config, world)
        dataset = SuccessorDataset(CURVE_STEPS * GLOBAL_BATCH, config.seed)
        steps = CURVE_STEPS if count in CURVE_COUNTS else SWEEP_STEPS
        for indices, tokens in EpochLoader(dataset, config, world).epoch(0, num_skipped=0):
            before = counter["exchanges"]
            losses.append(train_batch(training, TrainingHooks(), indices, tokens).global_loss)
            exchanges.append(counter["exchanges"] - before)
            if len(losses) == steps:
                break
    return {"losses": losses, "exchanges": exchanges}


@contextmanager
def counted_exchanges() -> Iterator[dict[str, int]]:
    """Count how often DDP exchanges all gradients, for models that are wrapped inside.

    DDP calls its communication hook for every bucket of gradients; the last bucket completes an exchange.
    """
    counter = {"exchanges": 0}
    original = parallel.average_in_rank_order

    @functools.wraps(original)
    def counting(group: Any, bucket: GradBucket) -> Any:
        counter["exchanges"] += bucket.is_last()
        return original(group, bucket)

    with mock.patch.object(parallel, "average_in_rank_order", counting):
        yield counter


def differences(losses: dict[int, list[float]], count: int) -> list[float]:
    """Return |difference| to one big batch in each of the first steps."""
    return [abs(a - b) for a, b in zip(losses[1][:SWEEP_STEPS], losses[count][:SWEEP_STEPS], strict=True)]


def worst(losses: dict[int, list[float]]) -> float:
    """Return the largest difference to one big batch, over all counts and the first steps."""
    return max(max(differences(losses, count)) for count in losses)


def print_sweep(losses: dict[int, list[float]], exchanges: dict[int, list[list[int]]]) -> None:
    """Print a line per number of micro-batches."""
    print(f"{RANKS} ranks, {GLOBAL_BATCH} samples a step, {GLOBAL_BATCH // RANKS} a rank\n")
    print(f"micro-batches  samples each  loss of step {SWEEP_STEPS}  largest |difference|  exchanges a step")
    for count in losses:
        steps = sorted({number for rank in exchanges[count] for number in rank})
        print(
            f"{count:13d}  {GLOBAL_BATCH // RANKS // count:12d}  {losses[count][SWEEP_STEPS - 1]:15.9f}  "
            f"{max(differences(losses, count)):20.3e}  {', '.join(map(str, steps)):>16s}"
        )


def print_curves(losses: dict[int, list[float]]) -> None:
    """Print every tenth loss of the long runs side by side."""
    first, second = CURVE_COUNTS
    print(f"\nstep  {f'loss, {first} micro-batch':>22s}  {f'loss, {second} micro-batches':>22s}  {'|difference|':>12s}")
    for step in range(10, CURVE_STEPS + 1, 10):
        one, other = losses[first][step - 1], losses[second][step - 1]
        print(f"{step:4d}  {one:22.9f}  {other:22.9f}  {abs(one - other):12.3e}")


def judge(losses: dict[int, list[float]], exchanges: dict[int, list[list[int]]]) -> list[str]:
    """Return what does not hold, in words."""
    problems = []
    for count in losses:
        if not max(differences(losses, count)) <= TOLERANCE:
            problems.append(f"{count} micro-batches: losses differ by {max(differences(losses, count)):.3e}, limit {TOLERANCE:g}")
        if any(number != 1 for rank in exchanges[count] for number in rank):
            problems.append(f"{count} micro-batches: exchanges a step on the ranks: {exchanges[count]}")
    return problems + [
        f"{count} micro-batches: {CURVE_STEPS} steps with a loss that falls"
        for count in CURVE_COUNTS
        if len(losses[count]) != CURVE_STEPS or not losses[count][-1] < losses[count][0]
    ]
