"""What a schedule can be drawn from: where a job is at each moment, read off runs of it that were looked at before.

Responsible for: the operations and batches of each rank in its own order, where a restart begins after a death at any of them,
and what is known of how the job takes errors and damage. Pure.
Not responsible for: which of it is drawn (`harness.chaos.drawing`), or running the job (`harness.chaos.looks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.checkpoint_files import age_of, number_of
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
        order: its place among the operations of all ranks.
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
    order: int = 0


@dataclass(frozen=True)
class Start:
    """Where an attempt begins.

    Attributes:
        step: updates that are done.
        after: of each rank, the event behind which it goes on (none: at the first).
        commit: of each rank, the event with which, or after which, a death finds this save done.
        committer: the rank whose event of these is the commit itself.
    """

    step: int
    after: Mapping[int, int]
    commit: Mapping[int, int] = field(default_factory=dict)
    committer: int = -1

    def stands_after(self, rank: int, index: int, done: bool) -> bool:
        """Whether a death at this event of a rank (once it was done, or before) finds the save done."""
        commit = self.commit.get(rank, -1)
        return index > commit or (index == commit and done and rank == self.committer)


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
        saves_when_asked: whether it saves when it is asked to end (SIGTERM).
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
    saves_when_asked: bool = False
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

    def restart_after(self, rank: int, index: int, done: bool) -> Start:
        """Where the job goes on after a death at this event of a rank: at the newest save that was done by then."""
        return [start for start in self.starts if start.step == 0 or start.stands_after(rank, index, done)][-1]

    def restart_asked(self, step: int) -> Start:
        """Where it goes on after it was asked to end at a step, and has saved for it."""
        return Start(step, {rank: steps[step] for rank, steps in self.steps_at.items() if step in steps})


def general(path: str) -> str:
    """A path as a pattern: each part of a name in which there is a digit is left open, since it may be another in each run."""
    opened = _TOKEN.sub(lambda token: token[0] if _NAMED.fullmatch(token[0]) else "*", path)
    return re.sub(r"\*(?:[-._]?\*)+", "*", opened) or "*"


def read_places(operations: Iterable[Record]) -> tuple[tuple[Place, ...], dict[int, dict[int, int]], tuple[Start, ...]]:
    """The places of an attempt, of each rank the events of its steps, and where a restart can begin.

    Args:
        operations: the records of its `operations.jsonl`.
    """
    ranks: dict[int, _Rank] = {}
    for order, record in enumerate(operations):
        if record["event"] in ("operation", "mark") and isinstance(record.get("rank"), int) and record["rank"] >= 0:
            ranks.setdefault(record["rank"], _Rank(record["rank"])).take(order, record)
    owns = [own for _, own in sorted(ranks.items())]
    places = tuple(place for own in owns for place in own.places)
    return places, {own.rank: own.steps for own in owns}, _starts(owns)


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
    orders: list[int] = field(default_factory=list)  # of its events, among those of all ranks

    def take(self, order: int, record: Record) -> None:
        """The next record."""
        index = len(self.orders)
        self.orders.append(order)
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
        order = self.orders[index]
        self.places.append(Place(index, self.rank, operation, pattern, names, size, self.phase, self.step, count, order))

    def guessed(self) -> list[tuple[int, int]]:
        """Of a job whose saves nobody reports: it has saved when it has renamed, or written, something between two batches."""
        done: dict[int, tuple[int, int]] = {}
        named = any(place.operation == "rename" for place in self.places)
        for place in self.places:
            if place.phase != START and place.operation == ("rename" if named else "write"):
                done[place.step] = (place.index, place.step)
        return list(done.values())


def _starts(ranks: Sequence[_Rank]) -> tuple[Start, ...]:
    """The fresh start, then the saves that the most talkative rank knows; of the others those of the same step."""
    starts = [Start(0, {})]
    saves = {own.rank: own.saves or own.guessed() for own in ranks}
    begun = dict.fromkeys(saves, 0)
    for _, step in max(saves.values(), key=len, default=[]):
        after = {rank: index for rank, own in saves.items() for index, at in own if at == step}
        starts.append(Start(step, after, *_commit(ranks, begun, after)))
        begun |= after
    return tuple(starts)


def _commit(ranks: Sequence[_Rank], begun: Mapping[int, int], after: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """What makes a save visible, as far as can be told: its last rename, or else its last write.

    Args:
        ranks: what each did.
        begun: of each rank, the event behind which the save began.
        after: of each rank, the event with which it ended.
    """
    own = {rank.rank: rank for rank in ranks}
    inside = [p for r in ranks for p in r.places if begun[r.rank] <= p.index <= after.get(r.rank, -1)]
    for operation in ("rename", "write"):
        found = [place for place in inside if place.operation == operation]
        if found:
            last = max(found, key=lambda place: own[place.rank].orders[place.index])
            moment = own[last.rank].orders[last.index]
            return {r.rank: sum(order <= moment for order in r.orders) - 1 for r in ranks}, last.rank
    return dict(after), -1


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
    newest = tops[max(numbered, key=age_of)]
    files = tuple(sorted({general(below) for below in newest if below}))
    return len(numbered), files, sum(newest.values())
