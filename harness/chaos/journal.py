"""The state of a night on disk: append-only, each line durable before anything that depends on it happens.

Responsible for: writing it, reading it back after the harness was killed, and finding the night that is to go on.
Not responsible for: what the lines mean to a night (`harness.chaos.night`).

A line is a JSON object with `event` and `at_s`, the seconds of the budget that were used by then:

    night     schema, began (ISO 8601), request (what was asked for), scenario (the job, as a replay file has it)
    drawn     number, origin, faults, world_sizes, expect, max_attempts: before the case runs
    finished  number, verdict (as in harness.result/1), points, paths
    shrunk    group, file: what a failure was made smaller to
    ended     exit
"""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import CapabilityError, UsageError

SCHEMA = "harness.night/1"
NAME = "night.jsonl"
# Kept free for the last lines of a night whose disk has become full.
_RESERVE_NAME, _RESERVE_BYTES = ".reserve", 1 << 16
Entry = dict[str, Any]


def now() -> str:
    """This moment, for `began`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """Appends to the journal of one night.

    Args:
        folder: of the night.
        used_s: seconds of its budget that were used before.
    """

    def __init__(self, folder: Path, used_s: float = 0.0) -> None:
        self.path = folder / NAME
        self._began = time.monotonic() - used_s
        self._reserve = folder / _RESERVE_NAME
        if not self._reserve.exists():
            self._reserve.write_bytes(bytes(_RESERVE_BYTES))
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if _torn(self.path):
            os.write(self._fd, b"\n")  # the harness was killed within a line, which is left out when it is read

    @property
    def used_s(self) -> float:
        """Seconds of the budget that are used."""
        return time.monotonic() - self._began

    def write(self, event: str, **fields: Any) -> None:
        """Appends a line, and returns once it is durable.

        Raises:
            CapabilityError: the disk is full, even after the reserve was given up.
        """
        line = (json.dumps({"event": event, "at_s": round(self.used_s, 3), **fields}) + "\n").encode()
        try:
            self._append(line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._reserve.unlink(missing_ok=True)
            try:
                self._append(b"\n" + line)
            except OSError:
                raise disk_full(self.path.parent) from None

    def _append(self, line: bytes) -> None:
        done = 0
        while done < len(line):
            done += os.write(self._fd, line[done:])
        os.fsync(self._fd)

    def close(self) -> None:
        """Closes it; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._reserve.unlink(missing_ok=True)


def _torn(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def disk_full(folder: Path) -> CapabilityError:
    """The error for a disk that has become full under a night."""
    free = os.statvfs(folder)
    return CapabilityError(
        f"the disk under {folder} is full ({free.f_bavail * free.f_frsize >> 20} MiB are free)",
        "go on with this night",
        "Nothing that was found is lost; make room there, then: harness chaos --continue " + str(folder),
    )


def read(path: Path) -> tuple[list[Entry], int]:
    """The lines of a journal, and how many could not be read (the last one, where the harness was killed within it).

    Raises:
        UsageError: it is no journal of this version.
    """
    entries: list[Entry] = []
    bad = 0
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError([f"cannot read {path}: {error.strerror}; expected the journal of a night ({NAME})"]) from None
    for line in filter(None, lines):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            entries.append(entry)
        else:
            bad += 1
    if not entries or entries[0]["event"] != "night" or entries[0].get("schema") != SCHEMA:
        found = entries[0].get("schema", entries[0]["event"]) if entries else "no line that can be read"
        raise UsageError(
            [f"{path} is no journal of a night that this version can go on with: found {found!r}; expected {SCHEMA!r}"]
        )
    return entries, bad


@dataclass(frozen=True)
class Unfinished:
    """A night that can go on: its folder and what its journal says."""

    folder: Path
    entries: tuple[Entry, ...]

    @property
    def used_s(self) -> float:
        """Seconds of its budget that it has used."""
        return max((float(entry.get("at_s", 0.0)) for entry in self.entries), default=0.0)


def find_unfinished(place: Path) -> Unfinished:
    """The newest night below a folder (or in it) that has not ended.

    Raises:
        UsageError: there is none.
    """
    files = [place / NAME] if (place / NAME).is_file() else sorted(place.glob(f"*/{NAME}"), key=lambda p: -p.stat().st_mtime)
    problems: list[str] = []
    for file in files:
        try:
            entries, _ = read(file)
        except UsageError as error:
            problems += error.problems
            continue
        if not any(entry["event"] == "ended" for entry in entries):
            return Unfinished(file.parent, tuple(entries))
        problems.append(f"{file.parent} has come to its end; there is nothing to go on with")
    raise UsageError(problems or [f"no night below {place} to go on with; expected a folder with {NAME} (--out, --continue DIR)"])
