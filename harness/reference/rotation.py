"""Deleting old checkpoints, so that the disk does not fill, and never the last good one.

Order is by the number in the name, not by time: copying a directory or a clock that jumps changes times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from harness.reference.atomic import TEMPORARY_SUFFIX, fsync_directory
from harness.reference.formats import batch_of
from harness.reference.manifest import MANIFEST_NAME, is_committed, remove_directory


def rotate_checkpoints(parent: Path, keep_last: int = 5, corrupt: Collection[Path] = ()) -> list[Path]:
    """Keep the newest checkpoints and remove the older ones. Call it on one rank, and only after a commit.

    Args:
        parent: Directory of the checkpoints.
        keep_last: How many to keep.
        corrupt: Checkpoints known to be damaged. They do not count as kept, or a damaged one could push out the last
            good one; they are removed themselves once a good one of a higher number exists.

    Returns:
        What was removed.

    Raises:
        ValueError: `keep_last` is less than 1.
        OSError: Something could not be removed. What remains is either a whole checkpoint or none.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1 to keep the last good checkpoint, found {keep_last}")
    found = [(batch, path) for path in committed_checkpoints(parent) if (batch := batch_of(path)) is not None]
    good = sorted((batch, path) for batch, path in found if path not in corrupt)
    newest = good[-1][0] if good else -1
    damaged = sorted((batch, path) for batch, path in found if path in corrupt and batch < newest)
    removed = [path for _, path in damaged + good[:-keep_last]]
    for path in removed:
        remove_checkpoint(path)
    return removed


def make_room(parent: Path, keep_last: int) -> None:
    """The planted defect `delete-first`: remove what will be too much before the next checkpoint is there.

    Raises:
        OSError: Something could not be removed.
    """
    found = sorted((batch, path) for path in committed_checkpoints(parent) if (batch := batch_of(path)) is not None)
    for _, path in found[: max(0, len(found) + 1 - keep_last)]:
        remove_checkpoint(path)


def committed_checkpoints(parent: Path) -> list[Path]:
    """Return the committed checkpoints of whatever format, valid or not, in no order."""
    return [p for p in parent.iterdir() if batch_of(p) is not None and _is_checkpoint(p)] if parent.is_dir() else []


def remove_checkpoint(path: Path) -> None:
    """Remove one checkpoint: a file by its name, a directory manifest first. Durable on return.

    Raises:
        OSError: It could not be removed.
    """
    if path.is_dir():
        remove_directory(path)
    else:
        path.unlink()
        fsync_directory(path.parent)


def remove_leftovers(parent: Path) -> list[Path]:
    """Remove what saves and rotations that were cut short left behind; only names that this trainer makes.

    Safe only while no save is running: one rank, before training.

    Returns:
        What was removed.

    Raises:
        OSError: Something could not be removed.
    """
    removed = []
    for path in sorted(parent.iterdir()) if parent.is_dir() else []:
        if path.is_dir() and batch_of(path) is not None:
            if is_committed(path):
                removed += _remove_temporaries(path)
            else:
                remove_directory(path)
                removed.append(path)
        elif path.name.startswith(("step-", "checkpoint.pt")) and path.name.endswith(TEMPORARY_SUFFIX):
            path.unlink()
            removed.append(path)
    return removed


def _remove_temporaries(directory: Path) -> list[Path]:
    removed = [path for path in directory.iterdir() if path.name == MANIFEST_NAME + TEMPORARY_SUFFIX]
    for path in removed:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return removed


def _is_checkpoint(path: Path) -> bool:
    return is_committed(path) if path.is_dir() else path.suffix == ".pt"
