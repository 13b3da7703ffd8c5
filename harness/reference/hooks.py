"""What the trainer tells whoever watches it. The base class does nothing, and the trainer works the same without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from harness.reference.state import Training
from harness.reference.world import World


@dataclass(frozen=True)
class SkippedCheckpoint:
    """A checkpoint that was found corrupt and passed over: its path relative to the checkpoint directory, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class BatchReport:
    """One batch, after its update was done or skipped.

    Attributes:
        batch: Number of the batch, from 1.
        step: Optimizer updates completed, this batch's included.
        epoch: Epoch of the next batch.
        batch_in_epoch: Batches of that epoch already taken.
        reason: Why the update was skipped (`non_finite_loss`, `non_finite_grad`), or None.
        loss: Mean over this rank's samples.
        global_loss: Mean over all ranks.
        learning_rate: The one of this batch's update.
        scale: The factor on this batch's loss, or None without a scaler.
        grad_norm: Global L2 norm of the unscaled gradients before clipping; NaN if the batch has no backward pass.
        max_norm: The norm that gradients are clipped to.
        samples: Indices of this rank's samples, in order.
        parameters_finite: Whether every parameter of this rank is finite after the batch.
    """

    batch: int
    step: int
    epoch: int
    batch_in_epoch: int
    reason: str | None
    loss: float
    global_loss: float
    learning_rate: float
    scale: float | None
    grad_norm: float
    max_norm: float
    samples: list[int]
    parameters_finite: bool


class TrainingHooks:
    """Calls that the trainer makes, in this order, on every rank; override what is of interest."""

    def start(self, world: World, arguments: Sequence[str]) -> None:
        """The rank runs; no checkpoint has been read."""

    def built(self, training: Training) -> None:
        """The live objects exist; whoever wants to watch the optimizer can hang on to it now."""

    def resume(
        self, step: int, checkpoint: str | None, skipped: Sequence[SkippedCheckpoint], world_size_saved: int | None
    ) -> None:
        """A checkpoint is loaded, or (checkpoint None) there is none and training starts afresh."""

    def state(self, moment: Literal["start", "save", "load", "end"], training: Training) -> None:
        """The state may be looked at, not changed: before any load, just before a save, just after a load, at the end."""

    def logits(self, logits: Tensor, batch: int, micro_batch: int) -> Tensor:  # noqa: ARG002  for those who override it
        """Return the logits to use for this micro-batch of this batch, both counted from 1."""
        return logits

    def batch(self, report: BatchReport) -> None:
        """A batch is done."""

    def save_begin(self, step: int, checkpoint: str) -> None:
        """A save starts."""

    def save_end(self, step: int, checkpoint: str) -> None:
        """The checkpoint is durable and committed."""

    def save_failed(self, step: int, checkpoint: str, error: str) -> None:
        """The save failed; what was there before still is."""

    def refuse(self, error: str) -> None:
        """The trainer declines to start; exit code 3 follows."""

    def failed(self, error: str) -> None:
        """The trainer gives up; exit code 1 follows."""

    def end(self, step: int, batches: int) -> None:
        """All planned batches are done; exit code 0 follows."""
