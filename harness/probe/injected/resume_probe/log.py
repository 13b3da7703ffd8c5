"""The probe's end of the event log: one file per rank, one line per record, one `write` per line.

Responsible for: finding out which rank this process is, and for leaving a log alone that the trainer writes by itself.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any


def hex_of(value: float) -> str:
    """A number as the log keeps it."""
    return value.hex() if math.isfinite(value) else str(value)


# What the process group said before it was taken down.
_known: list[tuple[int, int]] = []


def rank_and_world_size() -> tuple[int, int]:
    """By torch's process group where there is one: Lightning, for one, sets no RANK. Else by the environment; else one rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if _known:
        return _known[-1]
    return int(os.environ.get("RANK") or "0"), int(os.environ.get("WORLD_SIZE") or "1")


def remember_rank() -> None:
    """To be called before a process group is taken down: a job that was done already says its first word after that."""
    _known.append(rank_and_world_size())


class Log:
    """Opened at the first record, when the rank is known."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._descriptor = -1
        self._file = (0, 0)
        self.silent = False
        self.rank = -1
        self.world_size = 1

    def open(self) -> bool:
        """Whether this process speaks for its rank."""
        if self._descriptor >= 0 or self.silent:
            return not self.silent
        self.rank, self.world_size = rank_and_world_size()
        self._open()
        if os.fstat(self._descriptor).st_size:
            self.silent = True  # the trainer writes its log itself, or another process of this rank does
            os.close(self._descriptor)
        return not self.silent

    def _open(self) -> None:
        path = os.path.join(self.folder, f"rank-{self.rank}.jsonl")  # noqa: PTH118
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        found = os.fstat(self._descriptor)
        self._file = (found.st_dev, found.st_ino)

    def write(self, event: str, **fields: Any) -> None:
        """Appends one record."""
        if not self.open():
            return
        if not self._is_ours():
            self._open()
        record = {"event": event, "rank": self.rank, "time_s": time.time(), **fields}
        os.write(self._descriptor, (json.dumps(record) + "\n").encode())

    def _is_ours(self) -> bool:
        """A trainer may close descriptors that it has not opened; the number is then a file of its own."""
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file
