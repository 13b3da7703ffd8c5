"""The format `single`: one file, `step-00000012.pt`, written by rank 0 and holding every rank's generators.

Fits replicated training (DDP): the model and the moments are the same on all ranks. Loads on any number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from harness.reference.atomic import atomic_save, make_directory, read_payload, write_payload
from harness.reference.comm import gather_values, raise_together, rank0_decides
from harness.reference.config import TrainConfig
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError, mismatch, one_line
from harness.reference.formats import CheckpointHeader, batch_of, check_names, checkpoint_name
from harness.reference.rng import capture_rng_state
from harness.reference.state import (
    Training,
    apply_rng_states,
    apply_small_state,
    check_schema,
    load_model_state,
    load_optimizer_state_by_name,
    optimizer_state_by_name,
    small_state,
)

FIXED_NAME = "checkpoint.pt"
_KEYS = frozenset({"schema", "world_size", "state", "data", "job", "scheduler", "scaler", "model", "optimizer", "rng"})


def build_payload(training: Training, rng_states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return everything a checkpoint holds, as plain types and live tensors.

    Args:
        training: The job.
        rng_states: Every rank's generators, in rank order.
    """
    return {
        **small_state(training),
        "model": training.model.state_dict(),
        "optimizer": optimizer_state_by_name(training.model, training.optimizer),
        "rng": rng_states,
    }


def load_checkpoint(path: Path, *, unsafe: bool = False) -> dict[str, Any]:
    """Read and check a single-file checkpoint; changes nothing.

    Args:
        path: The file.
        unsafe: The planted defect `unsafe-load`.

    Raises:
        CheckpointError: Missing, damaged, of unknown schema, without one of its parts, or with one that nobody knows.
    """
    payload = read_payload(path, unsafe=unsafe)
    if not isinstance(payload, dict):
        raise mismatch("cannot decode", path, "a dict", type(payload).__name__)
    check_schema(payload.get("schema"), path)
    check_names(payload, _KEYS, path)
    if batch_of(path) not in (None, payload["state"]["batch"]):
        found = payload["state"]["batch"]
        raise mismatch("step mismatch", path, f"batch {batch_of(path)} as in the name", f"batch {found}")
    return cast("dict[str, Any]", payload)


class SingleFormat:
    """See the module; `in_place` and `unsafe_load` are the planted defects of those names."""

    def __init__(self, in_place: bool, omitted: Collection[str], unsafe_load: bool = False) -> None:
        self._in_place = in_place
        self._unsafe_load = unsafe_load
        self._omitted = omitted

    def path_for(self, parent: Path, batch: int) -> Path:
        """Return the file of this batch."""
        return parent / (FIXED_NAME if self._in_place else f"{checkpoint_name(batch)}.pt")

    def find(self, parent: Path) -> list[Path]:
        """Return all checkpoint files, newest first by the number in the name; the fixed name, if any, before them."""
        if not parent.is_dir():
            return []
        numbered = [(batch, path) for path in parent.glob("step-*.pt") if (batch := batch_of(path)) is not None]
        fixed = parent / FIXED_NAME
        return [fixed] * os.path.lexists(fixed) + [path for _, path in sorted(numbered, reverse=True)]

    def verify(self, path: Path) -> CheckpointHeader:
        """Check every byte of the file."""
        payload = load_checkpoint(path, unsafe=self._unsafe_load)
        return CheckpointHeader(payload["state"]["batch"], payload["state"]["step"], payload["world_size"])

    def save(self, training: Training, path: Path) -> None:
        """Collect the generators of all ranks, write on rank 0, tell every rank the outcome."""
        payload = build_payload(training, gather_values(capture_rng_state()))
        rank0_decides(lambda: _overwrite(payload, path) if self._in_place else _write(payload, path))

    def load(self, training: Training, path: Path) -> str | None:
        """Restore this rank from the file."""
        error, warning = None, None
        try:
            warning = self._apply(training, load_checkpoint(path, unsafe=self._unsafe_load), path)
        except (OSError, CheckpointError) as caught:
            error = caught
        raise_together(error, f"load {path.name}")
        return warning

    def _apply(self, training: Training, payload: dict[str, Any], path: Path) -> str | None:
        load_model_state(training.model, payload["model"], path)
        if "optimizer" not in self._omitted:
            load_optimizer_state_by_name(training.model, training.optimizer, payload["optimizer"], path)
        apply_small_state(training, payload, path, self._omitted)
        # The generators come last, so that nothing done while loading can move them.
        return apply_rng_states(training, payload["rng"], self._omitted)


def _write(payload: dict[str, Any], path: Path) -> None:
    try:
        make_directory(path.parent)
        atomic_save(payload, path)
    except OSError as error:
        raise CheckpointError(f"cannot save {path}: rank 0: {one_line(error)}") from error


def _overwrite(payload: dict[str, Any], path: Path) -> None:
    # The planted defect `in-place`: from the open to the last write there is no valid checkpoint anywhere.
    make_directory(path.parent)
    with path.open("wb", buffering=0) as file:
        write_payload(payload, cast("Any", file))
        os.fsync(file.fileno())


def build_format(config: TrainConfig) -> SingleFormat:
    """Return the format as the configuration wants it."""
    return SingleFormat("in-place" in config.defect, omitted_parts(config.defect), "unsafe-load" in config.defect)
