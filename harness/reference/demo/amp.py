"""Float16 with a real GradScaler, on the CPU too: one batch of 20 overflows, is skipped, and leaves no trace but a smaller scale.

float16 ends at 65504. The gradients are computed for loss × scale, so that small ones do not vanish; when one of them leaves
the range, the update is left out, the scale halves, and after a stretch of clean batches it doubles again. What must not happen
is that anything else moves: no weight, no moment, no learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp import GradScaler

from harness.reference.amp import GROWTH_INTERVAL
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset
from harness.reference.demo.command import build_parser, conclude, lacks_device, workplace
from harness.reference.hooks import TrainingHooks
from harness.reference.loop import build_training, train_batch
from harness.reference.state import Training
from harness.reference.world import World

BATCHES, BAD_BATCH = 20, 10
FACTOR = 60000.0


class OverflowHooks(TrainingHooks):
    """Makes the gradients of one batch too large for float16, while its loss stays as it is."""

    def logits(self, logits: Tensor, batch: int) -> Tensor:
        """Multiply the gradient of the bad batch's logits; what comes out is infinite in float16, as in a real overflow."""
        if batch == BAD_BATCH:
            logits.register_hook(lambda gradient: gradient * FACTOR)  # type: ignore[no-untyped-call]
        return logits


@dataclass(frozen=True)
class Moment:
    """What a batch may change: a copy of it at one moment."""

    weights: Tensor
    moments: Tensor
    scale: float
    learning_rate: float
    step: int


@dataclass(frozen=True)
class Batch:
    """One batch: the state before and after it, and what became of it."""

    number: int
    reason: str | None
    loss: float
    before: Moment
    after: Moment
    skip_rate: float


def main(argv: Sequence[str]) -> int:
    """Run the demo; return its exit code."""
    options = build_parser("amp", format="single").parse_args(argv)
    if lacks_device(options.device, World()):
        return 2
    torch.set_num_threads(1)
    settings = {"device": options.device, "defect": tuple(options.defect)}
    with workplace(options.out) as place:
        config = TrainConfig(steps=BATCHES, precision="fp16", batches_per_epoch=BATCHES, **settings)
        batches = train(config)
        print(f"growth interval: {GROWTH_INTERVAL} clean batches; batch {BAD_BATCH} is made to overflow\n")
        rows = [format_row(batch) for batch in batches]
        print("\n".join(rows))
        (place / "rows.txt").write_text("\n".join(rows) + "\n")
    print(f"\nrolling skip rate of the last {len(batches)} batches: {batches[-1].skip_rate:.4f}")
    print_skip(batches[BAD_BATCH - 1])
    return conclude("skip path", judge(batches), f"1 of {BATCHES} batches skipped, nothing but the scale has moved")


def train(config: TrainConfig) -> list[Batch]:
    """Train as `loop.train_batches` does, without saves, and look at the state around each batch."""
    training = build_training(config, World())
    loader = EpochLoader(SuccessorDataset(config.steps * config.global_batch, config.seed), config, training.world)
    batches = []
    for indices, tokens in loader.epoch(0, num_skipped=0):
        before = look(training)
        report = train_batch(training, OverflowHooks(), indices, tokens)
        rate = training.state.amp.rolling_skip_rate()
        batches.append(Batch(report.batch, report.reason, report.loss, before, look(training), rate))
    return batches


def look(training: Training) -> Moment:
    """Copy what a batch may change."""
    parameters = list(training.model.parameters())
    state = training.optimizer.state
    moments = [state[parameter][key].flatten() for parameter in parameters for key in ("exp_avg", "exp_avg_sq")]
    assert isinstance(training.scaler, GradScaler)
    return Moment(
        torch.cat([parameter.detach().flatten() for parameter in parameters]),
        torch.cat(moments),
        training.scaler.get_scale(),
        float(training.optimizer.param_groups[0]["lr"]),
        training.state.step,
    )


def format_row(batch: Batch) -> str:
    """Return the line of a batch; the scale is the one after it."""
    tag = "STEP" if batch.reason is None else f"SKIP {batch.reason}"
    change = {0.5: "  halved", 1.0: "", 2.0: "  doubled"}.get(batch.after.scale / batch.before.scale, "  ?")
    return (
        f"batch {batch.number:2d}  step {batch.after.step:2d}  loss {batch.loss:.6f}  next lr {batch.after.learning_rate:.3e}  "
        f"skip rate {batch.skip_rate:.3f}  scale {batch.after.scale:g}{change}  {tag}"
    )


def print_skip(bad: Batch) -> None:
    """Print what the bad batch has changed and what not."""
    before, after = bad.before, bad.after
    print(f"batch {bad.number}: {changed(before.weights, after.weights)} of {before.weights.numel()} weights changed")
    print(f"batch {bad.number}: {changed(before.moments, after.moments)} of {before.moments.numel()} moments changed")
    print(f"batch {bad.number}: scale {before.scale:g} -> {after.scale:g}")
    print(f"batch {bad.number}: steps {before.step} -> {after.step}, lr {before.learning_rate:.6e} -> {after.learning_rate:.6e}")


def changed(before: Tensor, after: Tensor) -> int:
    """Return how many elements are not the same; a NaN never is."""
    return int((before != after).sum())


def judge(batches: Sequence[Batch]) -> list[str]:
    """Return what does not hold, in words."""
    clean, problems = 0, []
    for batch in batches:
        before, after, skipped = batch.before, batch.after, batch.number == BAD_BATCH
        clean = 0 if skipped else clean + 1
        # The count of clean batches begins again when the scale has doubled.
        factor = 0.5 if skipped else 2.0 if clean % GROWTH_INTERVAL == 0 else 1.0
        checks = {
            "STEP or SKIP": (batch.reason is not None) == skipped,
            f"scale times {factor:g}": after.scale == before.scale * factor,
            f"{0 if skipped else 1} step more": after.step == before.step + (not skipped),
            "weights stay" if skipped else "weights move": (changed(before.weights, after.weights) == 0) == skipped,
            "moments stay" if skipped else "moments move": (changed(before.moments, after.moments) == 0) == skipped,
            "learning rate stays": not skipped or after.learning_rate == before.learning_rate,
            "weights are finite": bool(torch.isfinite(after.weights).all()),
        }
        problems += [f"batch {batch.number}: {what}" for what, holds in checks.items() if not holds]
    if len(batches) != BATCHES or not any(batch.after.scale > batch.before.scale for batch in batches[BAD_BATCH:]):
        problems.append(f"{BATCHES} batches, and a scale that recovers after batch {BAD_BATCH}")
    return problems
