"""A checkpoint that a save has reported as done would survive a power cut.

Holds when, at the moment at which any rank logs the end of a save, every file of that checkpoint has been synced since it was
last written, and every name on the way to it (the file's own, its directory's) has been made durable by a sync of the
directory that holds it. Read off the operation log; nothing is cut. Only the reference trainer is held to it: it promises
that a checkpoint is durable when `save` returns.

Does not verify: that a rename waits for the data (a file that is synced after its rename, but before the save ends, passes);
disks that lie about a sync; writes that the gate does not see (`harness.inject.gate`).
"""

from __future__ import annotations

from harness.fault import OPERATIONS
from harness.oracle.finding import Finding, fail
from harness.scenario import Reference
from harness.store import AttemptRun, Baseline, Record, Run

_ORACLE = "durability"


def durability(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Follows the file operations of each attempt up to the first save that was reported too early."""
    if not isinstance(run.plan.scenario.workload, Reference):
        return []
    return [finding for attempt in run.attempts for finding in _one_attempt(attempt)]


class PageCache:
    """What would be lost in a power cut: written data and changed names that no sync has covered yet.

    Args:
        existing: the files that were there before, whose names are durable.
    """

    def __init__(self, existing: set[str]) -> None:
        self._known = existing
        self.data: set[str] = set()
        self.names: set[str] = set()
        self._moves: list[tuple[str, str]] = []

    def apply(self, record: Record) -> None:
        """Takes one operation into account; one that the harness has answered in the kernel's stead did not happen."""
        operation, path, to = record.get("operation"), str(record.get("path")), record.get("to")
        if record.get("tampered") is not None:
            return
        if operation in ("write", "truncate"):
            self.data.add(self._now(path))
        elif operation == "open" and path not in self._known:
            self._named(path)
        elif operation in ("mkdir", "link", "symlink"):
            self._named(str(to or path))
        elif operation == "rename" and to is not None:
            self._moved(path, str(to))
        elif operation in ("unlink", "rmdir"):
            self.data.discard(path)
            self.names.discard(path)
            self._known.discard(path)
        elif operation == "fsync":
            self._synced(self._now(path), everything=record.get("call") in ("sync", "syncfs"))

    def _now(self, path: str) -> str:
        """The name of an open file or directory that another rank may have renamed between the call and its record."""
        for old, new in [] if path in self._known else self._moves:
            if path == old or path.startswith(old + "/"):
                path = new + path.removeprefix(old)
        return path

    def _named(self, path: str) -> None:
        self._known.add(path)
        self.names.add(path)

    def _moved(self, path: str, to: str) -> None:
        self._moves.append((path, to))
        for files in (self.data, self.names, self._known):
            inside = {name for name in files if name == path or name.startswith(path + "/")}
            files -= inside
            files |= {to + name.removeprefix(path) for name in inside}
        self._named(to)

    def _synced(self, path: str, *, everything: bool) -> None:
        if everything:
            self.data.clear()
            self.names.clear()
            return
        self.data.discard(path)
        self.names = {name for name in self.names if (name.rpartition("/")[0] or ".") != path}

    def at_risk(self, checkpoint: str) -> tuple[str, str] | None:
        """The first file of a checkpoint that would suffer, and what is missing; None if all is durable."""
        for files, missing in ((self.data, "a sync of the file"), (self.names, "a sync of the directory that holds its name")):
            hit = sorted(name for name in files if name == checkpoint or name.startswith(checkpoint + "/"))
            if hit:
                return hit[0], missing
        return None


def _one_attempt(attempt: AttemptRun) -> list[Finding]:
    cache = PageCache(set(attempt.files("begin") or {}))
    for record in attempt.operations:
        if record["event"] == "operation" and record.get("operation") in OPERATIONS:
            cache.apply(record)
        elif record["event"] == "mark" and (record.get("what"), record.get("moment")) == ("save", "end"):
            found = cache.at_risk(str(record.get("checkpoint")))
            if found is not None:
                return [_finding(attempt, record, *found)]
    return []


def _finding(attempt: AttemptRun, record: Record, file: str, missing: str) -> Finding:
    rank, step = record.get("rank"), record.get("step")
    return fail(
        "not-durable",
        _ORACLE,
        f"rank {rank} reported {record.get('checkpoint')} as saved in attempt {attempt.index}, but a power cut could still take "
        f"{file}: {missing} was missing",
        component="checkpoint-files",
        step=step if isinstance(step, int) else None,
        rank=rank if isinstance(rank, int) else None,
        file=file,
        attempt=attempt.index,
        expected=missing,
        found="none before the end of the save",
    )
