"""Cases as tables: crash points and other places × what came of them, and which effects met which operations. Pure.

Responsible for: reading the place of a fault out of its sentence, and counting. Not responsible for: how a table looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.fault import (
    DamageFault,
    DiskFault,
    ErrnoFault,
    Fault,
    HoldFault,
    NumericFault,
    OperationPoint,
    PowerCutFault,
    SignalFault,
    StepPoint,
)
from harness.oracle.history import parse_quietly
from harness.report.document import CaseRow

MAX_ROWS = 120
GROUPS = {
    "kill": "killed, or asked to end",
    "power": "power cut",
    "error": "an operation that fails",
    "disk": "a disk that is too small",
    "damage": "damage at rest",
    "hold": "one rank held against another",
    "numbers": "bad batches",
    "none": "no fault",
    "other": "other faults",
}


@dataclass(frozen=True)
class Row:
    """One place: `group` is what was done there, `counts` how many cases had which outcome, `replay` the first that failed."""

    group: str
    place: str
    counts: dict[str, int]
    replay: str

    @property
    def failed(self) -> bool:
        """Whether anything failed there."""
        return any(word not in ("PASS", "INCONCLUSIVE") for word in self.counts)


@dataclass(frozen=True)
class Matrix:
    """Places × outcomes; `note` says what is left out of it, "" where nothing is."""

    outcomes: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str


def matrix(cases: Sequence[CaseRow]) -> Matrix:
    """Counts the cases (a state that stands for several counts as many) by place and outcome.

    A case with several faults stands in the row of each; a hold beside another fault only says when that one comes.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    replays: dict[tuple[str, str], str] = {}
    for case in cases:
        outcome = outcome_of(case)
        for key in _keys(case):
            counts.setdefault(key, Counter())[outcome] += max(1, case.states)
            if case.verdict == "FAIL":
                replays.setdefault(key, case.replay)
    order = list(GROUPS)
    rows = [Row(group, place, dict(found), replays.get((group, place), "")) for (group, place), found in counts.items()]
    rows.sort(key=lambda row: order.index(row.group))
    note = ""
    if len(rows) > MAX_ROWS:
        failed = sum(row.failed for row in rows)
        kept = sorted(range(len(rows)), key=lambda index: (not rows[index].failed, index))[:MAX_ROWS]
        note = f"{MAX_ROWS} of {len(rows)} places, those where something failed first ({failed} of them)"
        rows = [rows[index] for index in sorted(kept)]
    words = {word for row in rows for word in row.counts}
    kinds = sorted(words - {"PASS", "INCONCLUSIVE"})
    return Matrix(
        (*(w for w in ("PASS",) if w in words), *kinds, *(w for w in ("INCONCLUSIVE",) if w in words)), tuple(rows), note
    )


def outcome_of(case: CaseRow) -> str:
    """PASS, INCONCLUSIVE, or the kind of the failure."""
    return (case.kind or "FAIL") if case.verdict == "FAIL" else case.verdict


def _keys(case: CaseRow) -> list[tuple[str, str]]:
    sentences = [text for text in case.fault.split("; ") if text and text != "none"]
    faults = [(text, parse_quietly(text)) for text in sentences]
    others = [pair for pair in faults if not isinstance(pair[1], HoldFault)]
    found = [(_group(fault), _place(text, fault)) for text, fault in others or faults]
    return list(dict.fromkeys(found)) or [("none", "the job as it is")]


def _group(fault: Fault | None) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (SignalFault, "kill"),
        (PowerCutFault, "power"),
        (ErrnoFault, "error"),
        (DiskFault, "disk"),
        (DamageFault, "damage"),
        (HoldFault, "hold"),
        (NumericFault, "numbers"),
    )
    return next((word for kind, word in kinds if isinstance(fault, kind)), "other")


def _place(text: str, fault: Fault | None) -> str:
    if isinstance(fault, SignalFault | PowerCutFault):
        rank = fault.trigger
        if rank is None and isinstance(fault, SignalFault) and len(fault.who.ranks) == 1:
            rank = fault.who.ranks[0]
        who = "" if rank is None else f", rank {rank}"
        restart = f", restart {fault.attempt}" if fault.attempt else ""
        signal = "" if fault.signal == "sigkill" else f"{fault.signal} "
        return f"{signal}{_point(fault.point)}{who}{restart}"
    if isinstance(fault, ErrnoFault):
        return f"{fault.errno_name or 'short write'}: {_point(fault.point).removeprefix('before ')}, {fault.who}"
    return text


def _point(point: OperationPoint | StepPoint) -> str:
    if isinstance(point, StepPoint):
        return f"at step {point.step}"
    at = f" at {point.position}" if point.position is not None else ""
    nth = f" ({point.occurrence}.)" if point.occurrence > 1 else ""
    return f"{point.moment} {point.operation} {point.pattern}{at}{nth}"


@dataclass(frozen=True)
class Table:
    """A table of counts: the name of each column, and per row its name and its cells ("" for nothing)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def coverage_tables(cases: Sequence[CaseRow]) -> list[Table]:
    """What was done: effects × operations, effects × the phase of the job, numbers of ranks; in cases, failing ones beside."""
    wheres: dict[str, dict[str, Counter[str]]] = {"operation": {}, "phase": {}}
    sizes: dict[str, Counter[str]] = {}
    for case in cases:
        failed = "failed" if case.verdict == "FAIL" else "held"
        for sentence in case.fault.split("; "):
            fault = parse_quietly(sentence)
            if fault is None:
                continue
            effect = effect_of(fault)
            wheres["operation"].setdefault(effect, Counter())[f"{_operation_of(fault)}\0{failed}"] += 1
            wheres["phase"].setdefault(effect, Counter())[f"{_phase_of(fault)}\0{failed}"] += 1
        if case.world_sizes:
            sizes.setdefault(" → ".join(map(str, case.world_sizes)), Counter())[f"cases\0{failed}"] += 1
    tables = [_table("effects × operations", wheres["operation"]), _table("effects × phases", wheres["phase"])]
    return [table for table in [*tables, _table("numbers of ranks, launch after launch", sizes)] if table.rows]


def effect_of(fault: Fault) -> str:
    """The word of what a fault does."""
    if isinstance(fault, SignalFault):
        return fault.signal
    if isinstance(fault, PowerCutFault):
        return f"power-cut on {fault.filesystem}" if fault.filesystem else "power-cut"
    if isinstance(fault, ErrnoFault):
        return fault.errno_name or "short-write"
    return "hold" if isinstance(fault, HoldFault) else fault.effect


def _operation_of(fault: Fault) -> str:
    point = getattr(fault, "point", None)
    if isinstance(point, OperationPoint):
        return point.operation
    return "a step" if isinstance(point, StepPoint) else "a batch" if isinstance(fault, NumericFault) else "files at rest"


def _phase_of(fault: Fault) -> str:
    if isinstance(fault, NumericFault):
        return "every launch"
    attempt = getattr(fault, "attempt", 0)
    if isinstance(fault, DamageFault):
        return "between launches"
    return "first launch" if attempt == 0 else "restart" if attempt == 1 else "later restarts"


def _table(title: str, counts: dict[str, Counter[str]]) -> Table:
    columns = tuple(dict.fromkeys(key.partition("\0")[0] for row in counts.values() for key in row))
    return Table(title, columns, tuple((name, tuple(_cell(row, column) for column in columns)) for name, row in counts.items()))


def _cell(row: Counter[str], column: str) -> str:
    held, failed = row[f"{column}\0held"], row[f"{column}\0failed"]
    if not held + failed:
        return ""
    return f"{held + failed}" + (f" ({failed} failed)" if failed else "")


def worst_first(cases: Iterable[CaseRow]) -> list[CaseRow]:
    """Failures, then what could not be judged, then the rest; within these the given order."""
    order = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
    return sorted(cases, key=lambda case: order[case.verdict])
