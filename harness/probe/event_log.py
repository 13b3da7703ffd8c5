"""The writing end of the event log (docs/event-log.md): one file per rank, one line per record, one write per line.

Responsible for the form of the records only; what they say is decided by the caller.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def format_float(value: float) -> str:
    """Return a float as the log keeps it: `float.hex()`, or `nan`, `inf`, `-inf`."""
    return value.hex() if math.isfinite(value) else str(value)


class EventLog:
    """Appends records to `DIRECTORY/rank-N.jsonl`.

    A record is one `write` to a descriptor opened with O_APPEND, never through a buffer: a SIGKILL then falls between
    two lines, and whoever sees the system calls sees exactly where the rank is.

    Args:
        directory: Of the attempt; made if missing.
        rank: This process's rank.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"rank-{rank}.jsonl"
        self._rank = rank
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o644)

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """Append one record.

        Args:
            event: Its kind, as in docs/event-log.md.
            fields: What it says; must be JSON without NaN (see `format_float`).

        Raises:
            ValueError: A field is a NaN or an infinity, which JSON does not have.
            OSError: The record could not be written whole: a log with holes must not be taken for a log.
        """
        record = {"event": event, "rank": self._rank, "time_s": time.time(), **fields}
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"{self.path}: wrote {written} of {len(line)} bytes of a record")

    def close(self) -> None:
        """Close the file; further writes fail."""
        os.close(self._descriptor)
