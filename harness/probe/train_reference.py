"""The reference trainer, watched: `python -m harness.probe.train_reference ARGS`, alone or under `torchrun -m`.

Reads `HARNESS_EVENT_LOG` (directory of the attempt's log; absent: no log) and `HARNESS_NUMERIC_FAULTS`.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.probe.digest import components_of, digest_components
from harness.probe.event_log import EventLog, format_float
from harness.probe.injected.resume_probe.flip import VARIABLE as FLIP_VARIABLE
from harness.probe.injected.resume_probe.flip import flip_after, flip_last_bits
from harness.probe.numeric import VARIABLE as NUMERIC_VARIABLE
from harness.probe.numeric import NumericFault, apply_numeric_faults, parse_numeric_faults
from harness.probe.whole import whole_digests
from harness.reference import train
from harness.reference.amp import global_l2_norm
from harness.reference.hooks import BatchReport, SkippedCheckpoint, TrainingHooks
from harness.reference.state import Training
from harness.reference.world import World

LOG_VARIABLE = "HARNESS_EVENT_LOG"
_FLOAT_FIELDS = ("loss", "global_loss", "learning_rate", "scale", "grad_norm", "max_norm", "stepped_norm")


class ProbeHooks(TrainingHooks):
    """Writes the event log and plants numeric faults.

    Args:
        directory: Where the log goes, or None for no log.
        faults: What to plant.
        flip: After how many batches the last bit of every weight is flipped, or None.
    """

    def __init__(self, directory: Path | None, faults: tuple[NumericFault, ...], flip: int | None = None) -> None:
        self._flip = flip
        self._training: Training | None = None
        self._directory = directory
        self._faults = faults
        self._log: EventLog | None = None
        self._rank = 0
        self._stepped_norm: float | None = None

    def _write(self, event: str, **fields: Any) -> None:
        if self._log is not None:
            self._log.write(event, fields)

    def start(self, world: World, arguments: Sequence[str]) -> None:
        """Open this rank's log and record who runs."""
        self._rank = world.rank
        if self._directory is not None:
            self._log = EventLog(self._directory, world.rank)
        self._write(
            "start",
            world_size=world.world_size,
            pid=os.getpid(),
            python=platform.python_version(),
            torch=str(torch.__version__),
            arguments=list(arguments),
        )

    def built(self, training: Training) -> None:
        """Measure what really reaches the optimizer, whatever the trainer says that it has done to it."""

        def measure(optimizer: Optimizer, *_: object) -> None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self._stepped_norm = global_l2_norm(parameters)

        self._training = training
        if self._log is not None:
            training.optimizer.register_step_pre_hook(measure)

    def _flip_at(self, batch: int) -> None:
        if batch == self._flip and self._training is not None:
            flip_last_bits(self._training.model.parameters())

    def resume(
        self, step: int, checkpoint: str | None, skipped: Sequence[SkippedCheckpoint], world_size_saved: int | None
    ) -> None:
        """Record where training goes on from."""
        passed_over = [{"path": damaged.path, "reason": damaged.reason} for damaged in skipped]
        self._write("resume", step=step, checkpoint=checkpoint, skipped=passed_over, world_size_saved=world_size_saved)
        if checkpoint is None:
            self._flip_at(0)

    def state(self, moment: Literal["start", "save", "load", "end"], training: Training) -> None:
        """Record the digest of every component."""
        if self._log is not None:
            components = components_of(training)
            whole = whole_digests(components, shared_rng=training.config.rng_scope == "global")
            self._write("state", moment=moment, step=training.state.step, digests=digest_components(components), **whole)

    def logits(self, logits: Tensor, batch: int, micro_batch: int) -> Tensor:
        """Plant the numeric faults of this part of this batch."""
        return apply_numeric_faults(self._faults, logits, batch, self._rank, micro_batch)

    def batch(self, report: BatchReport) -> None:
        """Record one batch."""
        fields: dict[str, Any] = {**vars(report), "stepped_norm": self._stepped_norm}
        self._stepped_norm = None
        for name in _FLOAT_FIELDS:
            fields[name] = None if fields[name] is None else format_float(fields[name])
        self._write("batch", tag="STEP" if report.reason is None else "SKIP", **fields)
        self._flip_at(report.batch)

    def save_begin(self, step: int, checkpoint: str) -> None:
        """Record that a save starts."""
        self._write("save", moment="begin", step=step, checkpoint=checkpoint)

    def save_end(self, step: int, checkpoint: str) -> None:
        """Record that a save is committed."""
        self._write("save", moment="end", step=step, checkpoint=checkpoint)

    def save_failed(self, step: int, checkpoint: str, error: str) -> None:
        """Record that a save failed."""
        self._write("save", moment="failed", step=step, checkpoint=checkpoint, error=error)

    def refuse(self, error: str) -> None:
        """Record a refusal."""
        self._write("refuse", error=error)

    def failed(self, error: str) -> None:
        """Record a failure."""
        self._write("failed", error=error)

    def end(self, step: int, batches: int) -> None:
        """Record the end."""
        self._write("end", step=step, batches=batches)


def build_hooks(environment: Mapping[str, str]) -> ProbeHooks:
    """Build the hooks that the environment asks for.

    Raises:
        ValueError: `HARNESS_NUMERIC_FAULTS` is malformed.
    """
    directory = environment.get(LOG_VARIABLE)
    faults = parse_numeric_faults(environment.get(NUMERIC_VARIABLE, ""))
    return ProbeHooks(Path(directory) if directory else None, faults, flip_after(environment.get(FLIP_VARIABLE)))


def main(argv: Sequence[str]) -> int:
    """Run one watched rank; see `harness.reference.train.main`."""
    try:
        hooks = build_hooks(os.environ)
    except ValueError as error:
        print(f"usage error: {error}", file=sys.stderr)
        return train.USAGE
    return train.main(argv, hooks)


if __name__ == "__main__":
    train.leave(main(sys.argv[1:]))
