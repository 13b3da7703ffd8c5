"""The planted defect `pointer-first` of saving in one file: a pointer that runs ahead. Nothing here runs in a healthy job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.reference import single
from harness.reference.atomic import make_directory, read_bytes, temporary_path, write_durably
from harness.reference.comm import rank0_decides
from harness.reference.errors import mismatch
from harness.reference.formats import CheckpointHeader, batch_of
from harness.reference.state import Training

POINTER_NAME = "latest"


def write_pointer(parent: Path, name: str) -> None:
    """Let the pointer name a checkpoint, atomically and durably, as if the rest were as careful."""

    def write(file: Any) -> None:
        file.write(name.encode())

    make_directory(parent)
    # Under a name that a restart knows for a left-over.
    write_durably(parent / POINTER_NAME, write, temporary_path(parent / f"step-{POINTER_NAME}"))


class PointerFirst(single.SingleFormat):
    """One file per checkpoint, found by a pointer that is replaced before the file is written."""

    def find(self, parent: Path) -> list[Path]:
        """Return what the pointer names, there or not, and behind it the others, which are never looked at."""
        if not (parent / POINTER_NAME).exists():
            return super().find(parent)
        named = parent / read_bytes(parent / POINTER_NAME).decode()
        return [named, *(path for path in super().find(parent) if path != named)]

    def verify(self, path: Path) -> CheckpointHeader:
        """Believe the pointer: nothing is read before the load, which has no other checkpoint to go back to."""
        batch = batch_of(path)
        if batch is None:
            raise mismatch("bad pointer", path, "step-NNNNNNNN.pt", path.name)
        return CheckpointHeader(batch, 0, 0)

    def save(self, training: Training, path: Path) -> bool:
        """Replace the pointer, then write what it names."""
        rank0_decides(lambda: write_pointer(path.parent, path.name))
        return super().save(training, path)
