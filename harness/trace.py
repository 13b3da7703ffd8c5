"""The trace: the file operations of an attempt in the one order in which they happened, with what they wrote.

Responsible for: reading the records of a traced attempt (`harness.inject.recorder` writes them) into plain data, grouping
them by save, and finding which of two ranks' operations come in an order that nothing enforces.
Not responsible for: what would be left of them after a crash (`harness.crash`).

Does not see: stores through `mmap`, `io_uring`, files of a process outside the job, a file that was written elsewhere and then
moved in. `harness.crash` compares the traced directory with the real one, so that none of these passes unnoticed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.fault import OperationPoint
from harness.store import Record

DATA_FILE = "data.bin"
# Changes of names that two ranks may both try; the one that comes second gets one of these errors.
RACED = {"mkdir": "EEXIST", "link": "EEXIST", "symlink": "EEXIST", "unlink": "ENOENT", "rmdir": "ENOENT", "rename": "ENOENT"}


@dataclass(frozen=True)
class Stretch:
    """Bytes in the data file of a trace: `size_bytes` from `start` on, with their sha256 (hex)."""

    start: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class InitialFile:
    """What was there before the attempt: a `file`, a `dir`, or a `link`."""

    path: str
    kind: str
    inode: int
    mode: int
    data: Stretch | None = None
    target: str = ""


@dataclass(frozen=True)
class Operation:
    """One operation that happened.

    Attributes:
        n: its number in the order of all ranks, from 1.
        rank: whose it is.
        index: its number among the operations of that rank, from 0.
        operation: the family word of `harness.fault.OPERATIONS`; `call` is the system call itself.
        path: relative to the checkpoint directory; `to` is the second path of a rename or link. Absolute where outside.
        error: name of the error that the call failed with, "" for success.
        inode: of the file that it worked on, 0 where it has none.
        offset: where a write began, in bytes; the new length of a truncation.
        data: what was written.
        created: an open made the file; `emptied`: an open found one and cut it to nothing.
        synced: the file was opened so that each write is durable at once.
        mode: permission bits of what was made or changed.
        target: what a symbolic link points to.
        exchanged: a rename swapped the two names.
        time_s: when it was asked for, seconds since 1970.
    """

    n: int
    rank: int
    index: int
    operation: str
    call: str
    path: str
    to: str | None
    size_bytes: int
    error: str = ""
    inode: int = 0
    offset: int = 0
    data: Stretch | None = None
    created: bool = False
    emptied: bool = False
    synced: bool = False
    mode: int = 0
    target: str = ""
    exchanged: bool = False
    time_s: float = 0.0

    @property
    def names(self) -> list[str]:
        """Its paths."""
        return [self.path] if self.to is None else [self.path, self.to]

    def __str__(self) -> str:
        return f"{self.operation} {self.path}" + (f" to {self.to}" if self.to else "")


@dataclass(frozen=True)
class Mark:
    """A line that a rank wrote to its event log, at its place among the operations."""

    rank: int
    what: str
    moment: str
    step: int | None
    checkpoint: str | None
    time_s: float = 0.0


_LOOSE_FROM_BYTES, _LOOSE_BYTES = 2048, 256
Event = Operation | Mark


@dataclass(frozen=True)
class SaveWindow:
    """The events of one save: from its first to the last before the next save begins.

    Attributes:
        name: of the checkpoint.
        start: index of its first event in the trace; `stop` is one behind its last.
        returned: index of the event with which rank 0 said that it is done; None if it never did.
    """

    name: str
    start: int
    stop: int
    returned: int | None


@dataclass(frozen=True)
class Trace:
    """A traced attempt.

    Attributes:
        initial: what the directory held before.
        events: operations and marks, in order.
        data: the file that holds what was written.
        problems: what was seen that a trace cannot follow, in words.
        assumed: what was taken for granted where it could not be seen, in words.
    """

    initial: tuple[InitialFile, ...]
    events: tuple[Event, ...]
    data: Path
    problems: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def operations(self) -> list[Operation]:
        """The operations alone."""
        return [event for event in self.events if isinstance(event, Operation)]

    def of_rank(self, rank: int) -> list[Operation]:
        """The operations of one rank."""
        return [operation for operation in self.operations if operation.rank == rank]

    @property
    def ranks(self) -> list[int]:
        """The ranks that did anything."""
        return sorted({operation.rank for operation in self.operations})

    def saves(self) -> list[SaveWindow]:
        """The saves, by what the ranks said of them; where they said nothing, by the names that were written."""
        return _saves_by_marks(self.events) or _saves_by_names(self.events)

    def occurrence(self, operation: Operation, pattern: str) -> int:
        """Which of its rank's operations that match (family, pattern) this is, counted from 1 over the attempt."""
        point = OperationPoint(operation.operation, pattern)
        count = 0
        for other in self.of_rank(operation.rank):
            count += point.matches(other.operation, other.names)
            if other.n == operation.n:
                break
        return count


def read_trace(folder: Path, records: Iterable[Record]) -> Trace:
    """The trace of an attempt.

    Args:
        folder: of the attempt, which holds the data file.
        records: of its `operations.jsonl`.
    """
    records = list(records)
    did = {record["n"]: record for record in records if record["event"] == "did"}
    counts: Counter[int] = Counter()
    events: list[Event] = []
    for record in records:
        if record["event"] == "mark":
            events.append(_mark(record))
        elif record["event"] == "operation" and record["n"] in did:
            rank = int(record["rank"])
            events.append(_operation(record, did[record["n"]], counts[rank]))
            counts[rank] += 1
    initial = tuple(_initial(record) for record in records if record["event"] == "initial")
    problems = tuple(dict.fromkeys(str(record["what"]) for record in records if record["event"] == "unfollowed"))
    assumed = tuple(dict.fromkeys(str(record["what"]) for record in records if record["event"] == "assumed"))
    return Trace(initial, tuple(events), folder / DATA_FILE, problems, assumed)


def _stretch(record: Record) -> Stretch | None:
    data = record.get("data")
    return None if data is None else Stretch(int(data[0]), int(data[1]), str(data[2]))


def _initial(record: Record) -> InitialFile:
    return InitialFile(
        str(record["path"]),
        str(record["kind"]),
        int(record["inode"]),
        int(record["mode"]),
        _stretch(record),
        str(record.get("target", "")),
    )


def _mark(record: Record) -> Mark:
    step = record.get("step")
    return Mark(
        int(record["rank"]),
        str(record["what"]),
        str(record.get("moment") or ""),
        step if isinstance(step, int) else None,
        record.get("checkpoint"),
        float(record.get("time_s", 0)),
    )


def _operation(record: Record, did: Record, index: int) -> Operation:
    return Operation(
        n=int(record["n"]),
        rank=int(record["rank"]),
        index=index,
        operation=str(record["operation"]),
        call=str(record["call"]),
        path=str(record["path"]),
        to=record.get("to"),
        size_bytes=int(record["size_bytes"]),
        error=str(did.get("error", "")),
        inode=int(did.get("inode", 0)),
        offset=int(did.get("offset", 0)),
        data=_stretch(did),
        created=bool(did.get("created")),
        emptied=bool(did.get("emptied")),
        synced=bool(did.get("synced")),
        mode=int(did.get("mode", 0)),
        target=str(did.get("target", "")),
        exchanged=bool(did.get("exchanged")),
        time_s=float(record.get("time_s", 0)),
    )


def _saves_by_marks(events: Sequence[Event]) -> list[SaveWindow]:
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    begun = ""
    final: dict[str, str] = {}  # what begins under a temporary name may end under another one
    for index, event in enumerate(events):
        if isinstance(event, Mark) and event.what == "save" and event.checkpoint:
            # A name that is used again is another save.
            name = f"{event.checkpoint} {event.step}"
            if event.moment == "begin":
                begins.setdefault(name, index)
                begun = name if event.rank == 0 else begun
            elif event.moment == "end" and event.rank == 0:
                begun = name if name in begins else begun
                ends[begun], final[begun] = index, event.checkpoint
    order = sorted(begins.items(), key=lambda item: item[1])
    names = [final.get(name) or name.rpartition(" ")[0] for name, _ in order]
    starts = [(name, _before(events, start), ends.get(key)) for name, (key, start) in zip(names, order, strict=True)]
    return _windows(starts, len(events))


def _before(events: Sequence[Event], start: int) -> int:
    """Where a save really begins: what is done to files since the last batch (an old checkpoint removed, say) belongs to it."""
    place = first = start
    while place and (isinstance(event := events[place - 1], Operation) or event.what == "state"):
        place -= 1
        first = place if isinstance(event, Operation) else first
    last = events[place - 1] if place else None
    # Behind the end of another save it is that one's rotation.
    return first if isinstance(last, Mark) and last.what == "batch" else start


def _windows(starts: Sequence[tuple[str, int, int | None]], end: int) -> list[SaveWindow]:
    stops = [*(start for _, start, _ in starts[1:]), end]
    return [SaveWindow(name, start, stop, returned) for (name, start, returned), stop in zip(starts, stops, strict=False)]


def save_of_path(path: str) -> str:
    """The checkpoint that a path belongs to by its name: the top-level name without what marks it as temporary."""
    top = path.removeprefix("./").split("/", 1)[0]
    return re.sub(r"(^[._-]*((tmp|temp)[._-]+)?)|([._-]+(tmp|temp|partial|part|incomplete)\b.*$)", "", top) or top


def _number_in(name: str) -> str:
    digits = re.findall(r"\d+", name)
    return str(int(digits[-1])) if digits else ""


def _final_path(events: Sequence[Event], index: int, path: str) -> str:
    """The path that a file has in the end, after all renames that follow."""
    for event in events[index + 1 :]:
        if isinstance(event, Operation) and event.operation == "rename" and event.to and not event.error:
            if path == event.path or path.startswith(event.path + "/"):
                path = event.to + path.removeprefix(event.path)
        elif isinstance(event, Operation) and event.path == path and event.created:
            break
    return path


def _saves_by_names(events: Sequence[Event]) -> list[SaveWindow]:
    """A save begins where another number is written, or where a file is made that this save has made already.

    Files are known by the names that they get in the end: a temporary name may be any.
    """
    starts: list[tuple[str, int, int | None]] = []
    made: set[str] = set()
    number = ""
    for index, event in enumerate(events):
        if not isinstance(event, Operation) or event.error or event.path == ".":
            continue
        if event.operation == "rename" and event.path.startswith("/"):
            path = event.to or ""
        elif event.operation == "mkdir" or (event.operation == "open" and (event.created or event.emptied)):
            path = _final_path(events, index, event.path)
        else:
            continue
        name = save_of_path(path)
        if not starts or path in made or (number and _number_in(name) not in ("", number)):
            starts.append((name, index, None))
            made, number = set(), ""
        made.add(path)
        number = number or _number_in(name)
    return _windows(starts, len(events))


@dataclass
class Order:
    """Which operations of different ranks come in an enforced order, learnt from several runs of one job.

    In each run another rank is made to wait at each of its operations for as long as the others can go on without it. What
    then still comes after that operation needs it; what came before it in one run and after it in another is ordered by
    nothing but luck.

    Attributes:
        positions: per run: (rank, index) → place in that run's order.
    """

    positions: list[dict[tuple[int, int], int]] = field(default_factory=list)

    @classmethod
    def learn(cls, traces: Sequence[Trace]) -> Order:
        """The order that all of these runs agree on; all must hold the same operations of each rank (`first_difference`)."""
        return cls([{(op.rank, op.index): place for place, op in enumerate(trace.operations)} for trace in traces])

    def enforced(self, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Whether `first` (rank, index) came before `second` in every run."""
        return all(places[first] < places[second] for places in self.positions)

    def by_luck(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        """Whether the two were seen in both orders."""
        return not self.enforced(one, other) and not self.enforced(other, one)


def first_difference(first: Trace, second: Trace) -> str:
    """Where two runs of one job differ in what a rank did, in words; "" if they do not. Only names and sizes are compared.

    A name that is drawn anew in each run (a temporary file) is taken for the same where it stands for the same file. An open
    file goes by the name under which its rank opened it, since another rank may have renamed its directory meanwhile. Which of
    two ranks that do the same change of names succeeds is a matter of who comes first.
    """
    if first.ranks != second.ranks:
        return f"ranks {first.ranks} wrote in one run, {second.ranks} in the other"
    for rank in first.ranks:
        ours, theirs = first.of_rank(rank), second.of_rank(rank)
        names: dict[str, str] = {}
        written: dict[str, tuple[int, int]] = {}
        for a, b, own, other in zip(ours, theirs, _names_at_open(ours), _names_at_open(theirs), strict=False):
            before = written.get(own[0], (0, 0)) if a.operation == "write" else (0, 0)
            written[own[0]] = (before[0] + a.size_bytes, before[1] + b.size_bytes)
            same = (a.operation, len(a.names)) == (b.operation, len(b.names))
            same = same and _are_alike(a.size_bytes, b.size_bytes, before)
            same = same and (a.error == b.error or (a.operation in RACED and {a.error, b.error} <= {"", RACED[a.operation]}))
            if not same or any(names.setdefault(x, y) != y for x, y in zip(own, other, strict=False)):
                once, again = _in_words(a, own), _in_words(b, other)
                return f"rank {rank}, operation {a.index + 1}: {once} in one run, {again} in the other"
        if len(ours) != len(theirs):
            return f"rank {rank} did {len(ours)} operations in one run, {len(theirs)} in the other"
    return ""


def _in_words(operation: Operation, names: Sequence[str]) -> str:
    """An operation with all that `first_difference` compares."""
    opened = f", opened as {names[0]}" if list(names) != operation.names else ""
    failed = f", failed with {operation.error}" if operation.error else ""
    return f"{operation} ({operation.size_bytes} bytes{opened}{failed})"


def _are_alike(size_bytes: int, other_bytes: int, before: tuple[int, int]) -> bool:
    """A pickle of numbers that nobody has seeded is some bytes longer or shorter every time; it is the same file all the same.

    So is the filling behind it, which may be short: it counts with what was written to the file `before`.
    """
    if size_bytes == other_bytes:
        return True
    least = min(before[0] + size_bytes, before[1] + other_bytes)
    return least >= _LOOSE_FROM_BYTES and abs(size_bytes - other_bytes) <= _LOOSE_BYTES


def _names_at_open(operations: Sequence[Operation]) -> Iterable[list[str]]:
    opened: dict[int, str] = {}
    for op in operations:
        if op.operation == "open" and op.inode:
            opened[op.inode] = op.path
        name = opened.get(op.inode, "") if op.operation in ("write", "fsync", "truncate") else ""
        # Numbers of inodes are used again: only a file whose last name is still the same is the one that was opened.
        yield [name] if name.rpartition("/")[2] == op.path.rpartition("/")[2] else op.names


def stable_pattern(path: str, *others: str) -> str:
    """A pattern for a path that is valid in every run: what differs from that of other runs becomes `*`, in each of its names."""
    pattern = path
    for other in others:
        ours, theirs = pattern.split("/"), other.split("/")
        if len(ours) == len(theirs):
            pattern = "/".join(_stable_name(a, b) for a, b in zip(ours, theirs, strict=True))
    return pattern


def _stable_name(ours: str, theirs: str) -> str:
    if ours == theirs:
        return ours
    start = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    # Digits at the edge of what differs may be equal by accident.
    while start and ours[start - 1].isalnum():
        start -= 1
    end = 0
    while end < min(len(ours), len(theirs)) - start and ours[-1 - end] == theirs[-1 - end]:
        end += 1
    while end and ours[len(ours) - end].isalnum():
        end -= 1
    return f"{ours[:start]}*{ours[len(ours) - end :] if end else ''}"
