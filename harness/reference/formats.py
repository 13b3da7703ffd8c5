"""The checkpoint formats: what each must offer, and where it is found. To add one, add a file and its line here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from harness.reference.errors import mismatch

if TYPE_CHECKING:
    from harness.reference.config import TrainConfig
    from harness.reference.state import Training

# Imported when chosen: `torch.distributed.checkpoint` alone costs more to import than a small job takes.
FORMAT_MODULES = {
    "single": "harness.reference.single",
    "sharded": "harness.reference.sharded",
    "dcp": "harness.reference.dcp",
    "dcp-async": "harness.reference.dcp_async",
    "safetensors": "harness.reference.safetensors_format",
}
NUMBERED_NAME = re.compile(r"step-(\d{8,})(?:\.pt)?")


@dataclass(frozen=True)
class CheckpointHeader:
    """What a verified checkpoint says about itself.

    Attributes:
        batch: Batches taken when it was saved; the number in its name.
        step: Optimizer updates completed when it was saved.
        world_size: Ranks that saved it.
    """

    batch: int
    step: int
    world_size: int


class CheckpointFormat(Protocol):
    """One way to store a checkpoint. Collective calls are made by all ranks together, and fail on all or on none."""

    def path_for(self, parent: Path, batch: int) -> Path:
        """Return where the checkpoint after this batch belongs."""

    def find(self, parent: Path) -> list[Path]:
        """Return all committed checkpoints, newest first, none of them read yet."""

    def verify(self, path: Path) -> CheckpointHeader:
        """Read everything and compare it with its checksums; `CheckpointError` if anything is amiss. One rank."""

    def save(self, training: Training, path: Path) -> bool:
        """Save; collective; `CheckpointError`.

        Returns:
            True if the checkpoint is durable and committed; False if it is still being written (`finish`).
        """

    def finish(self, wait: bool) -> bool:
        """Commit a save that was still being written; collective; `CheckpointError` if that save has failed.

        Args:
            wait: Whether to wait for it.

        Returns:
            Whether nothing is being written any more.
        """

    def load(self, training: Training, path: Path) -> str | None:
        """Restore everything from a verified checkpoint; returns a warning or None. Collective; `CheckpointError`."""


class SynchronousFormat:
    """What all formats have in common whose saves are committed when they return."""

    def finish(self, wait: bool) -> bool:  # noqa: ARG002
        """Nothing is ever left to do."""
        return True


def load_format(config: TrainConfig) -> CheckpointFormat:
    """Import and build the format that a configuration asks for.

    Raises:
        ValueError: Unknown name.
    """
    if config.format not in FORMAT_MODULES:
        raise ValueError(f"unknown format {config.format!r}, expected one of {', '.join(FORMAT_MODULES)}")
    module = importlib.import_module(FORMAT_MODULES[config.format])
    return cast("CheckpointFormat", module.build_format(config))


def batch_of(path: Path) -> int | None:
    """Return the batch number in a checkpoint's name, or None if it has none."""
    parsed = NUMBERED_NAME.fullmatch(path.name)
    return int(parsed[1]) if parsed else None


def checkpoint_name(batch: int) -> str:
    """Return the name of the checkpoint saved after a batch.

    The number counts batches, not updates: after a skipped batch two saves may share their update count.
    """
    return f"step-{batch:08d}"


def check_names(found: Iterable[object], expected: Iterable[str], path: object) -> None:
    """Raise `CheckpointError` unless a checkpoint has exactly these parts: an unknown one may be of a version with more."""
    names, known = {str(name) for name in found}, set(expected)
    wrong = [f"no {name}" for name in sorted(known - names)] + [f"unknown {name}" for name in sorted(names - known)]
    if wrong:
        raise mismatch("wrong parts", path, ", ".join(sorted(known)), ", ".join(wrong))
