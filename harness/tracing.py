"""`harness trace`: a job is run and recorded, and what is known of its saves is read off the record.

Responsible for: running it (once, and once more per writing rank to learn which order is enforced), and the facts per save:
operations, crash points, what was not durable when it was reported, pairs of operations that are ordered by luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.case import Workbench, check_environment
from harness.crash import Change, Model
from harness.crash_states import Points
from harness.errors import UsageError
from harness.explore import Recordings, no_checkpoint, record_runs
from harness.scenario import Scenario
from harness.trace import Operation, SaveWindow


@dataclass(frozen=True)
class SaveFacts:
    """What is known of one save.

    Attributes:
        window: where it lies in the trace.
        operations: of all ranks, in order.
        lost: numbers of those whose effect a power cut could still have taken when the save was reported (or, where nothing is
            reported, after its last operation).
        num_points: crash points in every order of the ranks.
        at_risk: what was not durable then, in words.
        by_luck: pairs of operations that were seen in both orders, in words; per pair of ranks those nearest to the commit.
        num_by_luck: how many pairs there are.
    """

    window: SaveWindow
    operations: tuple[Operation, ...]
    lost: frozenset[int]
    num_points: int
    at_risk: tuple[str, ...]
    by_luck: tuple[str, ...]
    num_by_luck: int


@dataclass(frozen=True)
class TracedJob:
    """What `harness trace` has found.

    Attributes:
        recordings: the runs.
        saves: in order.
        learnt: whether the job was run more than once, so that the order of ranks is known.
        inconclusive: what cannot be covered, in words; "" for nothing.
        data_bytes: size of what was kept, each content once.
        written_bytes: size of what the job wrote.
    """

    recordings: Recordings
    saves: tuple[SaveFacts, ...]
    learnt: bool
    inconclusive: str
    data_bytes: int
    written_bytes: int


def trace_job(scenario: Scenario, bench: Workbench, folder: Path, *, once: bool) -> TracedJob:
    """Runs and records a job.

    Args:
        scenario: the job.
        bench: where it runs.
        folder: where the recordings go; nothing else may be in it.
        once: do not run it again to learn which order of the ranks is enforced.

    Raises:
        UsageError: it wrote no checkpoint, or fails by itself.
        LaunchError, CapabilityError: it could not be run.
    """
    check_environment(scenario)
    recordings = record_runs(scenario, bench, folder, once=once)
    trace = recordings.recorded.trace
    if not trace.operations:
        raise UsageError([no_checkpoint(recordings.recorded.directory.checkpoints, recordings.outside)])
    saves = tuple(_facts(recordings, window, learnt=not once) for window in trace.saves())
    written = sum(op.data.size_bytes for op in trace.operations if op.data)
    reasons = [*recordings.unseen, *([recordings.unstable] if recordings.unstable else [])]
    return TracedJob(recordings, saves, not once, "; ".join(reasons), trace.data.stat().st_size, written)


def _facts(recordings: Recordings, window: SaveWindow, *, learnt: bool) -> SaveFacts:
    points = recordings.points(window)
    cuts, more = points.cuts() if learnt else (points.chain(points.trace), 0)
    trace = recordings.recorded.trace
    end = window.stop if window.returned is None else window.returned
    model = Model.of(trace)
    model.run([event for event in trace.events[:end] if isinstance(event, Operation)])
    pending = [change for change in model.pending if change.operation in points.operations]
    at_risk = tuple(dict.fromkeys(_risk(change) for change in pending))
    lost = frozenset(change.operation.n for change in pending if change.operation)
    pairs = _by_luck(points) if learnt and not recordings.unstable else []
    return SaveFacts(window, tuple(points.operations), lost, len(cuts) + max(0, more), at_risk, _words(pairs), len(pairs))


def _risk(change: Change) -> str:
    """An unsynced change and the sync that it lacks, in words."""
    assert change.operation is not None
    operation, who = change.operation, f"by rank {change.operation.rank}"
    if change.sort == "data":
        return f"the content of {operation.path} {who} (no fsync of the file)"
    target = operation.to or operation.path
    verb = "creation" if operation.operation in ("open", "mkdir") else operation.operation
    return f"the {verb} of {target} {who} (no fsync of {target.rpartition('/')[0] or 'the checkpoint directory'})"


def _by_luck(points: Points) -> list[tuple[Operation, Operation]]:
    return [
        (one, other)
        for i, one in enumerate(points.operations)
        for other in points.operations[i + 1 :]
        if one.rank != other.rank and points.order.by_luck((one.rank, one.index), (other.rank, other.index))
    ]


def _words(pairs: list[tuple[Operation, Operation]]) -> tuple[str, ...]:
    """Per pair of ranks the last pair of operations: the one nearest to the commit."""
    last: dict[frozenset[int], tuple[Operation, Operation]] = {}
    for one, other in pairs:
        last[frozenset((one.rank, other.rank))] = (one, other)
    return tuple(f"rank {a.rank}'s {a} and rank {b.rank}'s {b}" for a, b in last.values())
