"""The format `single`: one file, `step-00000012.pt`, written by rank 0 and holding every rank's generators.

What is split over the ranks (ZeRO-1, FSDP2) is gathered on rank 0 first, so this format is for models that fit there. Loads on
any number of ranks, into any of the three.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.reference.atomic import atomic_save, make_directory, read_payload, write_payload
from harness.reference.comm import raise_together, rank0_decides
from harness.reference.config import TrainConfig
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError, mismatch, one_line
from harness.reference.formats import CheckpointHeader, SynchronousFormat, batch_of, checkpoint_name
from harness.reference.payload import apply_payload, check_payload, collect_payload
from harness.reference.rng import capture_rng_state
from harness.reference.state import CHECKPOINT_SCHEMA, Training, TrainState

FIXED_NAME = "checkpoint.pt"


def save_checkpoint(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    state: TrainState,
    out_path: Path,
    *,
    scaler: GradScaler | None = None,
    extras: dict[str, Any] | None = None,
) -> tuple[int, str]:
    """Save a job of one process into one file, atomically and durably; for trainers without the rest of this package.

    Args:
        model: The bare model.
        optimizer: Over its parameters.
        scheduler: Its learning rate.
        state: The counters.
        out_path: The file.
        scaler: Loss scaling, if any.
        extras: More parts by name, of plain types and tensors (`load_checkpoint` returns them again).

    Returns:
        Size in bytes and sha256 (hex) of the file.

    Raises:
        OSError: It could not be written; what stood there before still does.
        ValueError: An extra has the name of a part.
    """
    payload = {
        "schema": CHECKPOINT_SCHEMA,
        "state": {"batch": state.batch, "step": state.step, "loss_history": list(state.loss_history)},
        "data": {"epoch": state.epoch, "batch_in_epoch": state.batch_in_epoch, "epoch_order": state.epoch_order},
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        "rng": [capture_rng_state()],
    }
    taken = sorted(payload.keys() & (extras or {}).keys())
    if taken:
        raise ValueError(f"extras must not be named as parts of the checkpoint, found {', '.join(taken)}")
    make_directory(out_path.parent)
    return atomic_save({**payload, **(extras or {})}, out_path)


def load_checkpoint(path: Path, *, mmap: bool = False, unsafe: bool = False, checksum: bool = True) -> dict[str, Any]:
    """Read and check a file; changes nothing.

    Args:
        path: The file.
        mmap: Map the tensors instead of reading them: of a large file only what is used comes into memory. Its checksum
            is verified all the same, in one pass over the file.
        unsafe: The planted defect `unsafe-load`.
        checksum: False is the planted defect `no-checksum`.

    Raises:
        CheckpointError: Missing, damaged, or of unknown schema.
    """
    payload = read_payload(path, mmap=mmap, unsafe=unsafe, checksum=checksum)
    schema = payload.get("schema") if isinstance(payload, dict) else None
    if not isinstance(schema, str) or not schema.startswith("ckpt."):
        raise mismatch("unknown schema", path, CHECKPOINT_SCHEMA, repr(schema))
    return cast("dict[str, Any]", payload)


def read_job(path: Path, *, unsafe: bool = False, checksum: bool = True) -> dict[str, Any]:
    """Read and check a checkpoint of a whole job, of this schema or an older one; changes nothing.

    Raises:
        CheckpointError: Missing, damaged, of unknown schema, without one of its parts, or of another batch than its name.
    """
    payload = check_payload(load_checkpoint(path, unsafe=unsafe, checksum=checksum), path)
    if batch_of(path) not in (None, payload["state"]["batch"]):
        found = payload["state"]["batch"]
        raise mismatch("step mismatch", path, f"batch {batch_of(path)} as in the name", f"batch {found}")
    return payload


class SingleFormat(SynchronousFormat):
    """See the module; `in_place`, `unsafe_load` and no `checksum` are planted defects."""

    def __init__(self, in_place: bool, omitted: Collection[str], unsafe_load: bool = False, *, checksum: bool = True) -> None:
        self._in_place = in_place
        self._unsafe_load = unsafe_load
        self._checksum = checksum
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
        payload = self._read(path)
        return CheckpointHeader(payload["state"]["batch"], payload["state"]["step"], payload["world_size"])

    def _read(self, path: Path) -> dict[str, Any]:
        return read_job(path, unsafe=self._unsafe_load, checksum=self._checksum)

    def save(self, training: Training, path: Path) -> bool:
        """Collect the state of all ranks, write on rank 0, tell every rank the outcome."""
        payload = collect_payload(training)
        rank0_decides(lambda: _overwrite(payload, path) if self._in_place else _write(payload, path))
        return True

    def load(self, training: Training, path: Path) -> str | None:
        """Restore this rank from the file."""
        error, warning = None, None
        try:
            warning = apply_payload(training, self._read(path), path, self._omitted)
        except (OSError, CheckpointError) as caught:
            error = caught
        raise_together(error, f"load {path.name}")
        return warning


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
    defects = config.defect
    chosen = planted_single.PointerFirst if "pointer-first" in defects else SingleFormat
    checksum = "no-checksum" not in defects
    return chosen("in-place" in defects, omitted_parts(defects), "unsafe-load" in defects, checksum=checksum)


# The planted variant builds on what is defined above.
from harness.reference import planted_single  # noqa: E402
