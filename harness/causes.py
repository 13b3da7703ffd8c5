"""From the failing crash states of a save to their causes: each named once, not once per state.

Responsible for: grouping by what went wrong and by the one loss or order that brings it about, and saying it in words.
A kill that fails between two operations is named by the operation that opened the gap; a cut that fails only in an order that
nothing enforces, by the two operations; a power cut, by the fewest unsynced changes whose loss is enough.
Not responsible for: the verdicts (`harness.judge`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.crash import Change
from harness.crash_states import CrashState
from harness.oracle.verdict import Verdict
from harness.trace import Operation, Trace

KEPT_PER_CAUSE = 3


@dataclass(frozen=True)
class Judged:
    """The verdict on some equal states.

    Attributes:
        state: the first of them.
        num_states: how many there are.
        verdict: on all of them.
        path: the run directory.
        members: all of them.
    """

    state: CrashState
    num_states: int
    verdict: Verdict
    path: Path
    members: list[CrashState] = field(repr=False, default_factory=list)


@dataclass(frozen=True)
class Cause:
    """Why some states fail.

    Attributes:
        sort: `gap` (a kill between two operations), `order` (a missing order of two ranks), `durability` (a missing sync).
        kind: the failure kind.
        component: what was lost or damaged.
        text: the cause in words.
        num_states: the states that fail of it.
        shortest: the plainest of them.
        operation, rank, file: what opened it.
        missing: the sync or the order that is missing; "" for a gap.
        kept: run directories that were kept, the shortest first.
    """

    sort: str
    kind: str
    component: str
    text: str
    num_states: int
    shortest: Judged
    operation: str
    rank: int
    file: str
    missing: str
    kept: tuple[Path, ...]


def find_causes(judged: Sequence[Judged], trace: Trace) -> list[Cause]:
    """The causes of all failures, those with the most states first."""
    failing = [one for one in judged if one.verdict.outcome == "FAIL"]
    kills = [one for one in failing if any(state.survivors is None for state in one.members)]
    naturals = [one for one in kills if any(s.natural and s.survivors is None for s in one.members)]
    orders = [one for one in kills if one not in naturals]
    powers = [one for one in failing if one not in kills]
    found: dict[tuple[str, ...], list[tuple[Judged, str, Operation | None, str]]] = {}
    for one in naturals:
        state = next(s for s in one.members if s.natural and s.survivors is None)
        opener = _opener(state, naturals, trace)
        _add(found, one, "gap", opener, "")
    for one in orders:
        opener, missing = _out_of_order(one.members[0], trace)
        _add(found, one, "order", opener, missing)
    minimal: list[tuple[frozenset[str], str]] = []
    for one in sorted(powers, key=lambda one: (len(one.state.lost), len(one.state.done))):
        losses = frozenset(map(lost_text, one.state.lost))
        known = next((text for small, text in minimal if small <= losses), None)
        if known is None:
            known = "; ".join(dict.fromkeys(map(lost_text, one.state.lost)))
            minimal.append((losses, known))
        _add(found, one, "durability", one.state.lost[-1].operation if one.state.lost else one.state.last, known)
    causes = [_cause(key, members) for key, members in found.items()]
    return sorted(causes, key=lambda cause: -cause.num_states)


_Found = dict[tuple[str, ...], list[tuple[Judged, str, Operation | None, str]]]


def _add(found: _Found, one: Judged, sort: str, operation: Operation | None, missing: str) -> None:
    kind, component = one.verdict.kind or "", one.verdict.component
    where = "" if operation is None or sort == "durability" else general(f"rank {operation.rank} {operation}")
    found.setdefault((sort, kind, component, where, missing), []).append((one, sort, operation, missing))


def _cause(key: tuple[str, ...], members: list[tuple[Judged, str, Operation | None, str]]) -> Cause:
    members = sorted(members, key=lambda member: (len(member[0].state.lost), len(member[0].state.done)))
    one, sort, operation, missing = members[0]
    return Cause(
        sort=sort,
        kind=key[1],
        component=key[2],
        text=_words(one, sort, operation, missing),
        num_states=sum(member[0].num_states for member in members),
        shortest=one,
        operation="" if operation is None else operation.operation,
        rank=-1 if operation is None else operation.rank,
        file="" if operation is None else operation.to or operation.path,
        missing=missing,
        kept=tuple(member[0].path for member in members[:KEPT_PER_CAUSE]),
    )


def _words(one: Judged, sort: str, operation: Operation | None, missing: str) -> str:
    what = f"rank {operation.rank}'s {operation}" if operation is not None else "the start of the save"
    if sort == "gap":
        return f"a kill right after {what}"
    if sort == "order":
        return f"nothing makes {what} wait for {missing}"
    when = f"{what_done(one.state)}"
    return f"a power cut {when} takes {missing}"


def what_done(state: CrashState) -> str:
    """When a state is reached, in words: after which operation, and whether the save had been reported."""
    last = state.torn or state.last
    after = "before the first operation" if last is None else f"after rank {last.rank}'s {last}"
    return after + (f" (when {state.owed[-1]} had been reported as saved)" if state.owed else "")


def lost_text(change: Change) -> str:
    """An unsynced change and the sync that it lacks, in words that are the same for every step and temporary name."""
    operation = change.operation
    path = "" if operation is None else operation.path
    who = "" if operation is None else f" by rank {operation.rank}"
    if change.sort == "data":
        return general(f"the content of {path}{who} (no fsync of the file)")
    target = operation.to or path if operation is not None else ""
    directory = target.rpartition("/")[0] or "the checkpoint directory"
    verb = "" if operation is None else "creation" if operation.operation in ("open", "mkdir") else operation.operation
    return general(f"the {verb} of {target}{who} (no fsync of {directory})")


def general(text: str) -> str:
    """A text in which numbers of steps and drawn names are left open."""
    text = re.sub(r"\.\d+-[0-9a-f]{8}(?=\.)", ".*", text)
    return re.sub(r"\d{3,}", "*", text)


def _opener(state: CrashState, naturals: Sequence[Judged], trace: Trace) -> Operation | None:
    """The operation after which every state up to this one fails."""
    failing = {s.done for one in naturals for s in one.members if s.natural and s.survivors is None and s.torn is None}
    kind = {s.done: one.verdict.kind for one in naturals for s in one.members if s.natural and s.torn is None}
    done, opener = state.done, state.last
    while done:
        shorter = _one_operation_less(done, trace)
        if shorter not in failing or kind.get(shorter) != kind.get(state.done, kind.get(shorter)):
            break
        done = shorter
        opener = next((op for i in reversed(done) if isinstance(op := trace.events[i], Operation)), None)
    if state.torn is not None and state.done not in failing:
        return state.torn
    return opener


def _one_operation_less(done: tuple[int, ...], trace: Trace) -> tuple[int, ...]:
    last = next((i for i in reversed(done) if isinstance(trace.events[i], Operation)), None)
    if last is None:
        return ()
    return tuple(i for i in done if i < last)


def _out_of_order(state: CrashState, trace: Trace) -> tuple[Operation | None, str]:
    """The operation that went ahead, and the other rank's first operation that it should have waited for."""
    done = {trace.events[i].n for i in state.done if isinstance(trace.events[i], Operation)}  # type: ignore[union-attr]
    last = max((op for op in trace.operations if op.n in done), key=lambda op: op.n, default=None)
    if last is None:
        return None, ""
    behind = [op for op in trace.operations if op.n < last.n and op.n not in done and op.rank != last.rank]
    if not behind:
        return last, ""
    missing = behind[-1]
    return last, general(f"rank {missing.rank}'s {missing}")
