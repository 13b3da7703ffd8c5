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


def rank_and_world_size() -> tuple[int, int]:
    """By torch's process group where there is one: Lightning, for one, sets no RANK. Else by the environment; else one rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Log:
    """Opened at the first record, when the rank is known."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._descriptor = -1
        self.silent = False
        self.rank = -1
        self.world_size = 1

    def open(self) -> bool:
        """Whether this process speaks for its rank."""
        if self._descriptor >= 0 or self.silent:
            return not self.silent
        self.rank, self.world_size = rank_and_world_size()
        path = os.path.join(self.folder, f"rank-{self.rank}.jsonl")  # noqa: PTH118
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        if os.fstat(self._descriptor).st_size:
            self.silent = True  # the trainer writes its log itself, or another process of this rank does
            os.close(self._descriptor)
        return not self.silent

    def write(self, event: str, **fields: Any) -> None:
        """Appends one record."""
        if self.open():
            record = {"event": event, "rank": self.rank, "time_s": time.time(), **fields}
            os.write(self._descriptor, (json.dumps(record) + "\n").encode())
