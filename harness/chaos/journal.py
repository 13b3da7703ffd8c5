"""The state of a night on disk: append-only, each line durable before anything that depends on it happens.

Responsible for: writing it, by one process at a time, reading it back after the harness was killed, and finding the night that is
to go on.
Not responsible for: what the lines mean to a night (`harness.chaos.night`).

A line is a JSON object with `event` and `at_s`, the seconds of the budget that were used by then:

    night     schema, began (ISO 8601), request (what was asked for), scenario (the job, as a replay file has it)
    drawn     number, origin, faults, world_sizes, expect, max_attempts: before the case runs
    finished  number, ran and again (verdict as in harness.result/1, points, path), turned (regressed or fixed, of the corpus)
    shrunk    group, file: what a failure was made smaller to
    ended     exit
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import CapabilityError, UsageError, is_full

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

    Raises:
        UsageError: another process writes it.
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, used_s: float = 0.0) -> None:
        self.path = folder / NAME
        self._began = time.monotonic() - used_s
        self._reserve = folder / _RESERVE_NAME
        # Nothing else of this process may open it: a lock of this kind is gone with the first descriptor that is closed. It is no
        # heritage of forked processes, which may live a moment longer than this one.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if not _locked(self._fd):
                raise UsageError([_running_text(folder)])
            if not self._reserve.exists():
                self._reserve.write_bytes(bytes(_RESERVE_BYTES))
            if _torn(self._fd):
                os.write(self._fd, b"\n")  # the harness was killed within a line, which is left out when it is read
        except BaseException as error:
            if isinstance(error, OSError):  # nothing is left of a night that could not begin
                self._reserve.unlink(missing_ok=True)
                if not os.fstat(self._fd).st_size:
                    self.path.unlink(missing_ok=True)
            os.close(self._fd)
            raise

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
            if not is_full(error):
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


def _torn(fd: int) -> bool:
    return os.pread(fd, 1, max(0, os.fstat(fd).st_size - 1)) not in (b"", b"\n")


def _locked(fd: int) -> bool:
    """Whether this process has the lock now; where a file system knows none, nobody is told apart."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _is_running(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # whoever wants to write it sees that
    try:
        return not _locked(fd)
    finally:
        os.close(fd)


def _running_text(folder: Path) -> str:
    return f"{folder}: this night is still running, in another process; expected one that has been killed (--continue DIR)"


def disk_full(folder: Path) -> CapabilityError:
    """The error for a disk that has become full under a night."""
    free = os.statvfs(folder)
    return CapabilityError(
        f"the disk under {folder} is full ({free.f_bavail * free.f_frsize >> 20} MiB are free)",
        "go on with this night",
        goes_on(folder, "; make room there, then: "),
    )


def goes_on(folder: Path, until: str = "; go on with it: ") -> str:
    """How a night goes on that could not come to its end, and what must be done before."""
    return f"Nothing that was found is lost{until}harness chaos --continue {shlex.quote(str(folder))}"


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
        if _is_running(file):
            problems.append(_running_text(file.parent))
            continue
        try:
            entries, _ = read(file)
        except UsageError as error:
            problems += error.problems
            continue
        if not any(entry["event"] == "ended" for entry in entries):
            return Unfinished(file.parent, tuple(entries))
        problems.append(f"{file.parent} has come to its end; there is nothing to go on with")
    raise UsageError(problems or [f"no night below {place} to go on with; expected a folder with {NAME} (--out, --continue DIR)"])
