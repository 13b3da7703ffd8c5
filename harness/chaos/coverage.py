"""What has been covered: operations × effects × phases × numbers of ranks, and pairs of them one after the other.

Responsible for: reading it off what really fired in a run, counting it over cases and nights, and choosing of the schedules that
were drawn those that reach what is not covered yet. Pure, but for `read`.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from harness.chaos.places import RECOVERY, REST, SAVE, START, TRAINING
from harness.fault import DamageFault, DiskFault, ErrnoFault, Fault, HoldFault, NumericFault, PowerCutFault
from harness.oracle.history import parse_quietly
from harness.store import AttemptRun, Record, Run

SCHEMA = "harness.coverage/1"
_WRITING = ("write", "fsync", "rename", "unlink", "mkdir", "rmdir", "truncate", "link", "symlink", "chmod")


class Point(NamedTuple):
    """One thing that was done: to which operation, with which effect, in which phase of the job, on so many ranks."""

    operation: str
    effect: str
    phase: str
    world_size: int

    @property
    def kind(self) -> str:
        """Without the number of ranks, as pairs have it."""
        return f"{self.effect} {self.operation} {self.phase}"


Pair = tuple[str, str]


@dataclass
class Coverage:
    """How often each point and each pair was covered."""

    points: Counter[Point] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)

    def add(self, points: Sequence[Point]) -> None:
        """One more case."""
        self.points.update(points)
        self.pairs.update(pairs_of(points))

    def merge(self, other: Coverage) -> None:
        """All that another one has."""
        self.points.update(other.points)
        self.pairs.update(other.pairs)

    def novelty(self, points: Sequence[Point]) -> float:
        """How much a case with these points would add: what was never covered counts most, what was covered often least."""
        fresh = sum(1 / (1 + self.points[point]) for point in set(points))
        return fresh + sum(1 / (1 + self.pairs[pair]) for pair in set(pairs_of(points)))

    def to_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            "schema": SCHEMA,
            "points": [[*point, count] for point, count in sorted(self.points.items())],
            "pairs": [[*pair, count] for pair, count in sorted(self.pairs.items())],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Coverage:
        """Reads what `to_json` wrote. Raises: KeyError, TypeError, ValueError where it is something else."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}; expected {SCHEMA!r}")
        found = cls()
        for operation, effect, phase, size, count in data["points"]:
            found.points[Point(str(operation), str(effect), str(phase), int(size))] += int(count)
        for first, second, count in data["pairs"]:
            found.pairs[str(first), str(second)] += int(count)
        return found


def pairs_of(points: Sequence[Point]) -> list[Pair]:
    """What came after what."""
    return [(one.kind, other.kind) for one, other in itertools.pairwise(points)]


def read(path: Path) -> tuple[Coverage, list[str]]:
    """Sums the lines of a `coverage.jsonl`.

    Returns:
        The coverage, and one sentence for each line that could not be read.
    """
    found = Coverage()
    problems: list[str] = []
    if not path.is_file():
        return found, problems
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line:
            continue
        try:
            found.merge(Coverage.of_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(f"{path} line {number} is left out: {error}; expected coverage as a night wrote it ({SCHEMA})")
    return found, problems


class _HasPoints(Protocol):
    @property
    def points(self) -> Sequence[Point]: ...


Drawn = TypeVar("Drawn", bound=_HasPoints)


def choose(drawn: Iterable[Drawn], count: int, covered: Coverage) -> list[Drawn]:
    """Of the schedules that were drawn, those that add most, one after the other.

    Args:
        drawn: in the order in which they were drawn, which decides where two add the same.
        count: how many.
        covered: what is covered already; it is not changed.
    """
    ahead, left = Coverage(), list(drawn)
    chosen: list[Drawn] = []
    ahead.merge(covered)
    while left and len(chosen) < count:
        best = max(range(len(left)), key=lambda index: (ahead.novelty(left[index].points), -index))
        chosen.append(left.pop(best))
        ahead.add(chosen[-1].points)
    return chosen


def covered_by(run: Run) -> list[Point]:
    """What fired in a run, in order; bad batches first, which every attempt has."""
    first = run.plan.scenario.world_size(0)
    points = [Point("batch", fault.effect, TRAINING, first) for fault in run.plan.numeric]
    for attempt in run.attempts:
        seen = set()
        for record in attempt.of("fired"):
            fault = parse_quietly(record.get("fault"))
            if fault is not None and str(fault) not in seen:
                seen.add(str(fault))
                points.append(_point(fault, record, attempt))
    return points


def _point(fault: Fault, record: Record, attempt: AttemptRun) -> Point:
    if isinstance(fault, DamageFault):
        return Point("files", fault.effect, REST, attempt.world_size)
    if isinstance(fault, DiskFault):
        return Point("disk", fault.effect, SAVE, attempt.world_size)
    operation = str(record.get("operation"))
    return Point(operation, _effect(fault), _phase(record, attempt), attempt.world_size)


def _effect(fault: Fault) -> str:
    if isinstance(fault, ErrnoFault):
        return fault.errno_name or "short-write"
    if isinstance(fault, HoldFault):
        return "hold"
    if isinstance(fault, PowerCutFault):
        return "power-cut"
    return fault.effect if isinstance(fault, (NumericFault, DiskFault, DamageFault)) else fault.signal


def _phase(record: Record, attempt: AttemptRun) -> str:
    """Where the rank was, by what its log said before."""
    if record.get("operation") == "step":
        return TRAINING
    log = attempt.ranks.get(record.get("rank", -1))
    time_s = float(record.get("time_s", 0.0))
    said = [entry for entry in (log.records if log else []) if float(entry.get("time_s", 0.0)) <= time_s]
    saves = [entry.get("moment") for entry in said if entry["event"] == "save"]
    if saves and saves[-1] == "begin":
        return SAVE
    if not any(entry["event"] == "batch" for entry in said):
        return RECOVERY if attempt.index else START
    # Of a job that does not report its saves, what it writes is one.
    reported = any(entry["event"] == "save" for entry in (log.records if log else []))
    return TRAINING if reported or record.get("operation") not in _WRITING else SAVE
