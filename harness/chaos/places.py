"""What a schedule can be drawn from: where a job is at each moment, read off runs of it that were looked at before.

Responsible for: the operations and batches of each rank in its own order, where a restart begins after a death at any of them,
and what is known of how the job takes errors and damage. Pure.
Not responsible for: which of it is drawn (`harness.chaos.drawing`), or running the job (`harness.chaos.looks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.checkpoint_files import number_of
from harness.fault import OperationPoint
from harness.store import Record

START, RECOVERY, SAVE, TRAINING, REST = "start", "recovery", "save", "training", "rest"
_TOKEN = re.compile(r"[^-._/]*[0-9\s,][^-._/]*")
# `rank1`, `epoch3`: the same in every run of a job, as hexadecimal names are not.
_NAMED = re.compile(r"(?=.*[g-zG-Z])[A-Za-z]{3,}[0-9]{1,2}")


@dataclass(frozen=True)
class Place:
    """One operation of a rank.

    Attributes:
        index: its place among all that this rank did, marks of its log included.
        rank: the rank.
        operation: the family.
        pattern: its path, what changes from run to run left open.
        names: its paths.
        size_bytes: of a write.
        phase: `start`, `recovery`, `save` or `training`.
        step: updates that the rank had done.
        nth: which operation of its kind it is, counted from the beginning of the attempt.
    """

    index: int
    rank: int
    operation: str
    pattern: str
    names: tuple[str, ...]
    size_bytes: int
    phase: str
    step: int
    nth: int = 1


@dataclass(frozen=True)
class Start:
    """Where an attempt begins: with so many updates done, and at which event of each rank (-1: the first)."""

    step: int
    after: Mapping[int, int]


@dataclass(frozen=True)
class JobMap:
    """What is known of a job.

    Attributes:
        ranks: of the first attempt.
        steps: updates of the whole job.
        batches: batches of the whole job.
        places: all operations below the checkpoint directory, rank by rank.
        steps_at: of each rank, the event after which each step is done.
        starts: the fresh start, then one per save.
        recovery: what a restart does before its first batch, reads included.
        sizes: other numbers of ranks that it can be restarted on.
        standing: how many checkpoints stand beside each other at the end.
        files: of a checkpoint, as patterns; () where it is one file.
        save_bytes: of one checkpoint.
        scaled: whether its losses are scaled by a GradScaler.
        falls_back: whether it goes on from an older checkpoint where the newest is damaged.
        gives_up: whether it ends when a write of a save fails.
        reshards: whether it owes a resume on another number of ranks.
        told: the steps that rank 0's log tells of.
    """

    ranks: int
    steps: int
    batches: int
    places: tuple[Place, ...]
    steps_at: Mapping[int, Mapping[int, int]]
    starts: tuple[Start, ...]
    recovery: tuple[Place, ...] = ()
    sizes: tuple[int, ...] = ()
    standing: int = 1
    files: tuple[str, ...] = ()
    save_bytes: int = 0
    scaled: bool = False
    falls_back: bool = True
    gives_up: bool = True
    reshards: bool = True
    told: tuple[int, ...] = ()

    def after(self, start: Start, rank: int | None = None) -> tuple[Place, ...]:
        """The operations that an attempt that begins there will do, in their ranks' order."""
        return tuple(
            place
            for place in self.places
            if place.index > start.after.get(place.rank, -1) and (rank is None or place.rank == rank)
        )

    def occurrence(self, place: Place, start: Start) -> int:
        """Which operation of its kind a place is, counted from the start of the attempt."""
        point = OperationPoint(place.operation, place.pattern)
        return sum(
            point.matches(other.operation, other.names) for other in self.after(start, place.rank) if other.index <= place.index
        )

    def steps_after(self, start: Start) -> tuple[int, ...]:
        """The steps at which an attempt that begins there can be stopped."""
        return tuple(step for step in self.told if step > start.step)

    def restart_after(self, rank: int, index: int) -> Start:
        """Where the job goes on after a death at this event of a rank: at the newest save that was done by then."""
        return [start for start in self.starts if start.after.get(rank, -1) < index][-1]


def general(path: str) -> str:
    """A path as a pattern: each part of a name in which there is a digit is left open, since it may be another in each run."""
    opened = _TOKEN.sub(lambda token: token[0] if _NAMED.fullmatch(token[0]) else "*", path)
    return re.sub(r"\*(?:[-._]?\*)+", "*", opened) or "*"


def read_places(operations: Iterable[Record]) -> tuple[tuple[Place, ...], dict[int, dict[int, int]], tuple[Start, ...]]:
    """The places of an attempt, of each rank the events of its steps, and where a restart can begin.

    Args:
        operations: the records of its `operations.jsonl`.
    """
    by_rank: dict[int, list[Record]] = {}
    for record in operations:
        if record["event"] in ("operation", "mark") and isinstance(record.get("rank"), int) and record["rank"] >= 0:
            by_rank.setdefault(record["rank"], []).append(record)
    places: list[Place] = []
    steps_at: dict[int, dict[int, int]] = {}
    saves: dict[int, list[tuple[int, int]]] = {}
    for rank, records in sorted(by_rank.items()):
        own = _Rank(rank)
        for index, record in enumerate(records):
            own.take(index, record)
        places += own.places
        steps_at[rank] = own.steps
        saves[rank] = own.saves or own.guessed()
    return tuple(places), steps_at, _starts(saves)


@dataclass
class _Rank:
    """One pass over what a rank did."""

    rank: int
    places: list[Place] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    saves: list[tuple[int, int]] = field(default_factory=list)  # event at which a save is done, updates in it
    step: int = 0
    phase: str = START
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, index: int, record: Record) -> None:
        """The next record."""
        if record["event"] == "operation":
            self._operation(index, record)
            return
        what, moment, step = record.get("what"), record.get("moment"), record.get("step")
        if what == "batch" and isinstance(step, int):
            self.step = step
            self.steps.setdefault(step, index)
            self.phase = TRAINING
        elif what == "resume" and isinstance(step, int):
            self.step = step
        elif what == "save":
            self.phase = SAVE if moment == "begin" else TRAINING
            if moment == "end" and isinstance(step, int):
                self.saves.append((index, step))

    def _operation(self, index: int, record: Record) -> None:
        path = str(record.get("path"))
        names = tuple(str(name) for name in (record.get("path"), record.get("to")) if name is not None)
        pattern, operation = general(path), str(record["operation"])
        count = self.counts[operation, pattern] = self.counts.get((operation, pattern), 0) + 1
        size = record.get("size_bytes")
        size = size if isinstance(size, int) and operation == "write" else 0
        self.places.append(Place(index, self.rank, operation, pattern, names, size, self.phase, self.step, count))

    def guessed(self) -> list[tuple[int, int]]:
        """Of a job whose saves nobody reports: it has saved when it has renamed, or written, something between two batches."""
        done: dict[int, tuple[int, int]] = {}
        named = any(place.operation == "rename" for place in self.places)
        for place in self.places:
            if place.phase != START and place.operation == ("rename" if named else "write"):
                done[place.step] = (place.index, place.step)
        return list(done.values())


def _starts(saves: Mapping[int, Sequence[tuple[int, int]]]) -> tuple[Start, ...]:
    """The fresh start, then the saves that the most talkative rank knows; of the others those of the same step."""
    starts = [Start(0, {})]
    told = max(saves.values(), key=len, default=[])
    for _, step in told:
        starts.append(Start(step, {rank: index for rank, own in saves.items() for index, at in own if at == step}))
    return tuple(starts)


def recovery_places(operations: Iterable[Record]) -> tuple[Place, ...]:
    """What each rank of a restart did before its first batch."""
    places, steps_at, _ = read_places(operations)
    return tuple(place for place in places if place.index < min(steps_at.get(place.rank, {}).values(), default=1 << 60))


def checkpoint_patterns(paths: Mapping[str, int]) -> tuple[int, tuple[str, ...], int]:
    """Of the files at the end of a run: how many checkpoints stand, the files of the newest as patterns, and its bytes.

    Args:
        paths: path → bytes.
    """
    tops: dict[str, dict[str, int]] = {}
    for path, size in paths.items():
        top, _, below = path.partition("/")
        tops.setdefault(top, {})[below] = size
    numbered = [top for top in tops if number_of(top)] or list(tops)
    if not numbered:
        return 0, (), 0
    newest = tops[max(numbered, key=lambda top: (number_of(top), top))]
    files = tuple(sorted({general(below) for below in newest if below}))
    return len(numbered), files, sum(newest.values())
