"""What the ranks of an attempt did, in the one order in which it happened, as events to be drawn. Pure.

Responsible for: putting operations, batches, saves, commits and faults into one order, and choosing a window of very many.
Not responsible for: drawing (`harness.report.plots`), or what the order means (`harness.causes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.fault import OPERATIONS
from harness.store import AttemptRun, Record

WIDE, NARROW, LISTED = 220, 56, 60
# Of what is shown, the part that comes before the first fault.
_BEFORE = 0.75


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        what: an operation family, `batch`, `resume`, `save begins`, `save ends`, `commit`, `fault`, or how a rank ended.
        rank: whose it is, -1 for the job.
        text: about what: a path, a step, a sentence.
        time_s: seconds since the attempt was launched.
        bad: something that was done to the job.
        error: the name of the error that an operation failed with.
    """

    what: str
    rank: int
    text: str
    time_s: float
    bad: bool = False
    error: str = ""


@dataclass(frozen=True)
class Window:
    """The events from number `first` on, of `total`; `note` says what is left out, "" where nothing is."""

    events: tuple[Event, ...]
    first: int
    total: int
    note: str


@dataclass(frozen=True)
class Timeline:
    """The events of an attempt; `ranks` are those that did anything."""

    attempt: int
    ranks: tuple[int, ...]
    events: tuple[Event, ...]

    def window(self, most: int) -> Window:
        """The events around the first fault; where there is none, around the first commit, else the first ones."""
        total = len(self.events)
        if total <= most:
            return Window(self.events, 0, total, "")
        marks = [n for n, e in enumerate(self.events) if e.what == "fault"] or [
            n for n, e in enumerate(self.events) if e.what == "commit"
        ]
        around = "the fault" if any(e.what == "fault" for e in self.events) else "the first commit" if marks else "the start"
        first = max(0, min((marks[0] if marks else 0) - int(_BEFORE * most), total - most))
        note = f"events {first + 1} to {first + most} of {total}, those around {around}"
        return Window(self.events[first : first + most], first, total, note)


def timeline(attempt: AttemptRun) -> Timeline | None:
    """The timeline of an attempt; None where nothing was recorded of it."""
    told = [record for record in attempt.operations if record["event"] in ("operation", "mark")]
    rows = [(_time(record), 1, event) for record in told if (event := _operation(record) or _mark(record))]
    rows += [(_time(record), 0, event) for record in attempt.supervisor if (event := _seen(record))]
    if not rows:
        return None
    # The operations' own order is that in which they happened; the times of others place them among these.
    order = sorted(range(len(rows)), key=lambda index: (rows[index][0], -rows[index][1], index))
    launched = [_time(record) for record in attempt.of("launched")]
    start_s = launched[0] if launched else min(row[0] for row in rows)
    events = tuple(_at(rows[index][2], rows[index][0] - start_s) for index in order)
    ranks = sorted({event.rank for event in events if event.rank >= 0} | set(attempt.ranks))
    return Timeline(attempt.index, tuple(ranks), events)


def _at(event: Event, time_s: float) -> Event:
    return Event(event.what, event.rank, event.text, max(0.0, time_s), event.bad, event.error)


def _operation(record: Record) -> Event | None:
    what = str(record.get("operation"))
    if record["event"] != "operation" or what not in OPERATIONS:
        return None
    path, to = str(record.get("path", "")), record.get("to")
    size = record.get("size_bytes")
    text = path + (f" to {to}" if isinstance(to, str) else "") + (f", {size} bytes" if isinstance(size, int) and size > 0 else "")
    error = record.get("error")
    return Event(what, _rank(record), text, 0.0, record.get("tampered") is not None, str(error) if error else "")


def _mark(record: Record) -> Event | None:
    if record["event"] != "mark":
        return None
    what, step = record.get("what"), record.get("step")
    if what == "save":
        words = {"begin": "save begins", "end": "save ends", "failed": "save fails"}
        moment = words.get(str(record.get("moment")), "save")
        return Event(moment, _rank(record), str(record.get("checkpoint") or ""), 0.0)
    if what in ("batch", "resume"):
        return Event(str(what), _rank(record), f"step {step}", 0.0)
    return None


def _seen(record: Record) -> Event | None:
    kind = record["event"]
    if kind == "fired":
        return Event("fault", _rank(record), str(record.get("fault")), 0.0, bad=True)
    if kind == "committed":
        return Event("commit", 0, str(record.get("checkpoint")), 0.0)
    if kind == "exited":
        how = record.get("signal") or f"exit code {record.get('code')}"
        return Event(
            "end",
            _rank(record),
            f"{how} ({record.get('kind')})",
            0.0,
            bad=record.get("kind") not in ("exited",) or bool(record.get("code")),
        )
    return None


def _rank(record: Record) -> int:
    rank = record.get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else -1


def _time(record: Record) -> float:
    time_s = record.get("time_s")
    return float(time_s) if isinstance(time_s, int | float) else 0.0


def save_spans(events: Sequence[Event]) -> list[tuple[int, int, int, str]]:
    """(rank, from, to, checkpoint) of each save, by places of events; one that was cut off reaches to the rank's last event."""
    open_saves: dict[int, tuple[int, str]] = {}
    last: dict[int, int] = {}
    spans = []
    for place, event in enumerate(events):
        last[event.rank] = place
        if event.what == "save begins":
            open_saves[event.rank] = (place, event.text)
        elif event.what in ("save ends", "save fails"):
            start, name = open_saves.pop(event.rank, (0, event.text))
            spans.append((event.rank, start, place, name))
    spans += [(rank, start, last[rank], name) for rank, (start, name) in open_saves.items()]
    return sorted(spans)
