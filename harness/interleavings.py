"""Interleavings: one rank's last operations of a save wait while the rank that commits goes on as far as it can.

Where something (a barrier, a collective) makes the commit wait for every shard, it never comes while a shard is held. Where
nothing does, the checkpoint is committed without that shard, everything dies, and the resume shows it.
Responsible for: the cases, as sentences, read off a recorded run. Pure. Not responsible for: running them (`harness.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.crash_states import Points
from harness.fault import HoldFault, OperationPoint, SignalFault, Who, matches_path
from harness.trace import Operation

_HELD = ("write", "fsync", "rename")


@dataclass(frozen=True)
class Interleaving:
    """One case: `held` waits for `commit`, and `killed` says who dies when (in words)."""

    held: Operation
    commit: Operation
    killed: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"rank {self.held.rank}'s {self.held} waits for rank {self.commit.rank}'s {self.commit}; {self.killed}"


def commit_of(points: Points, pattern: str | None) -> Operation | None:
    """The operation that makes a save visible: the rename onto the commit pattern, or else the last rename of the save."""
    renames = [op for op in points.operations if op.operation == "rename" and op.to is not None and not op.error]
    committing = [op for op in renames if pattern is not None and matches_path(pattern, str(op.to))] or renames
    return committing[-1] if committing else None


def interleavings(points: Points, pattern: str | None) -> Iterator[Interleaving]:
    """The cases of one save, none where a single rank writes.

    Args:
        points: of the save.
        pattern: of the path whose rename commits a checkpoint; None where that is not known.
    """
    commit = commit_of(points, pattern)
    if commit is None:
        return
    for rank in points.ranks:
        own = [op for op in points.operations if op.rank == rank and op.n < commit.n]
        if rank == commit.rank or not own:
            continue
        for held in filter(None, (_last(own, word) for word in _HELD)):
            hold = _hold(points, held, commit)
            after = _point(points, commit, "after")
            killing = SignalFault("sigkill", Who(quantifier="all"), after, commit.rank, points.attempt)
            yield Interleaving(held, commit, "all ranks die right after that", (hold, str(killing)))
        held = own[-1]
        # What the committing rank can still do while the other one is held.
        free = [op for op in points.operations if op.rank == commit.rank and op.n < commit.n and not _after(points, held, op)]
        if free:
            partner = free[-1]
            one = SignalFault("sigkill", Who((commit.rank,)), _point(points, partner, "before"), None, points.attempt)
            killed = f"rank {commit.rank} dies before its {partner}"
            yield Interleaving(held, commit, killed, (_hold(points, held, commit), str(one)))


def _after(points: Points, first: Operation, second: Operation) -> bool:
    return points.order.enforced((first.rank, first.index), (second.rank, second.index))


def _last(operations: list[Operation], word: str) -> Operation | None:
    return next((op for op in reversed(operations) if op.operation == word), None)


def _hold(points: Points, held: Operation, commit: Operation) -> str:
    return str(
        HoldFault(Who((held.rank,)), _point(points, held, "before"), commit.rank, _point(points, commit, "after"), points.attempt)
    )


def _point(points: Points, operation: Operation, moment: str) -> OperationPoint:
    where = points.point(operation)
    return OperationPoint(where.operation, where.pattern, moment, None, where.occurrence)
