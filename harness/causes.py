"""From the failing crash states of a save to their causes: each named once, not once per state.

Responsible for: finding the fewest statements that hold of all failing states and of no other, and saying them in words. Of
kills such a statement is "this operation has happened and that one has not": a gap where the second always follows the first,
a missing order where nothing but luck makes one of them come first. Of power cuts, it is the fewest unsynced changes whose loss
is enough; a cut that fails without any loss is no matter of syncs, and is counted with the kills.
Not responsible for: the verdicts (`harness.judge`). Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from harness.checkpoint_files import top_level
from harness.crash import Change
from harness.crash_sample import Look, Whole, look_of
from harness.crash_states import CrashState, Cut
from harness.oracle.verdict import FELT_IN_NUMBERS, Verdict, weight_of
from harness.trace import Mark, Operation, Order, Trace

KEPT_PER_CAUSE = 3
NAMED_AT_MOST = 3
_FELT = max(map(weight_of, FELT_IN_NUMBERS))
_MAKES = ("mkdir", "open", "write", "truncate")
_FILE_SYNC, _DIRECTORY_SYNC = "fsync of the file", "fsync of its directory"


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


Gap = tuple[Operation | None, Operation | None]


@dataclass(frozen=True)
class Cause:
    """Why some states fail.

    Attributes:
        sort: `gap` (a kill between two operations), `order` (a missing order of two ranks), `durability` (a missing sync), or
            `resume` (every resume is wrong, so the save's operations have no part in it).
        kind: the failure kind of the plainest of the gravest states; `text` names others.
        component: what was lost or damaged there.
        text: the cause in words, to be read after "N states fail because".
        num_states: the states that fail of it.
        shortest: the plainest of the gravest of them.
        operation, rank, file: what opened the gap, what went ahead, or what was not made durable.
        missing: the sync that is missing, or the operations that should have come first.
        kept: run directories that were kept, the shortest first.
        gaps: of kills, what has happened in these states and what has not, either of which may be None.
        looks: of kills, what the directory looks like, and what had been reported as saved.
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
    gaps: tuple[Gap, ...] = field(default=(), repr=False)
    looks: frozenset[tuple[Look, tuple[str, ...]]] = field(default=frozenset(), repr=False)

    @property
    def sentence(self) -> str:
        """The cause as one sentence, with the plainest state that shows it."""
        fail = "1 state fails" if self.num_states == 1 else f"{self.num_states} states fail"
        return f"{fail} because {self.text}; the first is: {'; '.join(self.shortest.state.faults)}"


@dataclass
class _Statement:
    """What holds of all states of a cause: `first` has happened, none of `awaited` has; or `lost` is gone.

    `within`: a write of which a part has landed, where that alone makes the difference. `unclear`: nothing of all this tells the
    states from others, which pass.
    """

    first: Operation | None = None
    awaited: list[Operation] = field(default_factory=list)
    within: Operation | None = None
    lost: list[str] = field(default_factory=list)
    example: Operation | None = None
    unclear: bool = False
    members: list[tuple[CrashState, Judged]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def find_causes(
    judged: Sequence[Judged], trace: Trace, order: Order, known: Sequence[Cause] = (), whole: Whole = frozenset()
) -> list[Cause]:
    """The causes of all failures, those with the most states first.

    Args:
        judged: all states with their verdicts, those that pass too: what they have in common is no cause.
        trace: the undisturbed run.
        order: which operations come in an enforced order.
        known: what kills in the same save have shown, where they were judged apart: a power cut there needs no loss to fail.
        whole: contents of files that are complete.
    """
    everything = [(state, one) for one in judged for state in one.members]
    inexact = _inexact(everything)
    rows = [row for row in everything if not any(row in statement.members for statement in inexact)]
    failing = [row for row in rows if row[1].verdict.outcome == "FAIL"]
    told = [row for row in failing if _is_told(row[1].verdict)]
    kills = [row for row in rows if row[0].survivors is None]
    inexactly = [row for statement in inexact for row in statement.members if row[0].survivors is None]
    statements = _of_kills(kills, inexactly, trace)
    lossless = {_place(state): statement for statement in statements for state, _ in statement.members}
    alike = {id(one): statement for statement in statements for _, one in statement.members}
    powers: list[tuple[CrashState, Judged]] = []
    explained: dict[int, list[tuple[CrashState, Judged]]] = {}
    for state, one in failing:
        if state.survivors is not None and not _is_told(one.verdict):
            # A kill at this very point fails too, or leaves this very directory: no loss is needed.
            statement = lossless.get((state.cut, -1, 0)) or alike.get(id(one))
            place = (
                None
                if statement
                else next((n for n, cause in enumerate(known) if _explains(cause, state, one, trace, whole)), None)
            )
            members = powers if place is None else explained.setdefault(place, [])
            (members if statement is None else statement.members).append((state, one))
    losses = _of_losses(powers, trace)
    causes = [_cause_of_inexactness(statement) for statement in inexact]
    causes += [_seen_again(known[place], members) for place, members in explained.items()]
    causes += [
        _with_looks(_cause_of_kills(statement, trace, order), statement, whole) for statement in _joined(statements, trace)
    ]
    causes += [_cause_of_losses(statement) for statement in _with_told(losses, told)]
    return sorted(causes, key=lambda cause: -cause.num_states)


def _inexact(rows: Sequence[tuple[CrashState, Judged]]) -> list[_Statement]:
    """Where every resume from a checkpoint goes wrong in its numbers, the save's operations have no part in it."""
    resumed = [row for row in rows if any(row[1].verdict.resumed_from)]
    # A lost checkpoint weighs more than wrong numbers, and hides them.
    if not resumed or not all(one.verdict.outcome == "FAIL" and weight_of(one.verdict.kind or "") <= _FELT for _, one in resumed):
        return []
    by_component: dict[str, list[tuple[CrashState, Judged]]] = {}

    # A log with a line for some steps only takes a resume before the first of them for a fresh start, which cannot go wrong.
    for row in [row for row in rows if row[1].verdict.outcome == "FAIL" and row[1].verdict.kind in FELT_IN_NUMBERS]:
        by_component.setdefault(row[1].verdict.component, []).append(row)
    # What all have lost is no matter of where they were cut; what some have lost beside it is.
    common = {component: members for component, members in by_component.items() if _have_lost(resumed, component)}
    by_component = common or by_component
    return [_Statement(members=members) for members in by_component.values()]


def _have_lost(rows: Sequence[tuple[CrashState, Judged]], component: str) -> bool:
    return all(any(found.component == component for found in one.verdict.findings) for _, one in rows)


def _cause_of_inexactness(statement: _Statement) -> Cause:
    component = statement.members[0][1].verdict.component
    what = "" if component == "none" else f": {component} is not what it was when that was saved"
    return _cause("resume", f"no resume from a checkpoint is exact, wherever the crash comes{what}", statement, None, "")


def _is_told(verdict: Verdict) -> bool:
    """Whether a missing sync was only read off the operations: then the crash has done no harm."""
    return verdict.root is not None and verdict.root.oracle == "durability"


def _explains(cause: Cause, state: CrashState, one: Judged, trace: Trace, whole: Whole) -> bool:
    """Whether a kill where the power was cut, or one that leaves such a directory, fails of this cause, and no more lightly."""
    if weight_of(one.verdict.kind or "") < weight_of(cause.kind):
        return False
    done = {event.n for index in state.done if isinstance(event := trace.events[index], Operation)}
    told = [gap for gap in cause.gaps if any(gap)]
    within = any((first is None or first.n in done) and (late is None or late.n not in done) for first, late in told)
    return within or (look_of(state.tree, whole), state.owed) in cause.looks or _is_of_place(cause, state)


def _is_of_place(cause: Cause, state: CrashState) -> bool:
    """Whether all that was lost belongs to what a kill leaves in part, since it is made in its place, and none was promised.

    Before a save is reported nothing need be synced; what does the harm is that a restart finds it.
    """
    if not state.lost or not any(owed == state.owed for _, owed in cause.looks):
        return False
    made = {top_level(first.path) for first, _ in cause.gaps if first is not None and first.operation in _MAKES}
    lost = [change.operation for change in state.lost]
    return all(op is not None and op.operation in _MAKES and top_level(op.path) in made for op in lost)


def _with_looks(cause: Cause, statement: _Statement, whole: Whole) -> Cause:
    kills = [state for state, _ in statement.members if state.survivors is None and state.tree and not statement.unclear]
    return replace(cause, looks=frozenset((look_of(state.tree, whole), state.owed) for state in kills))


def _seen_again(cause: Cause, members: Sequence[tuple[CrashState, Judged]]) -> Cause:
    shortest = min(members, key=lambda row: _plainest(row[0]))[1]
    return replace(cause, num_states=len(members), shortest=shortest, kept=(shortest.path,))


def _place(state: CrashState) -> tuple[Cut, int, int]:
    return state.cut, -1 if state.torn is None else state.torn.n, state.landed


# -- kills ---------------------------------------------------------------------------------------------------------------


def _of_kills(
    failing: Sequence[tuple[CrashState, Judged]], inexactly: Sequence[tuple[CrashState, Judged]], trace: Trace
) -> list[_Statement]:
    """The fewest statements that together hold of all failing kills, and of none that passes. Greedy: the widest first.

    What resumes as inexactly as everything else does passes here: the save has done it no harm.
    """
    rows = [*failing, *inexactly]
    statements = []
    for weight in sorted({weight_of(one.verdict.kind or "") for _, one in failing if one.verdict.outcome == "FAIL"}):
        statements += _of_weight(rows, len(failing), trace, weight)
    return statements


def _of_weight(rows: Sequence[tuple[CrashState, Judged]], num: int, trace: Trace, weight: int) -> list[_Statement]:
    """The same for the failures of one weight: what leaves rubbish behind is another cause than what loses a checkpoint.

    Of the rows the first `num` may have been harmed.
    """
    harmed = [place < num and one.verdict.outcome == "FAIL" and not _is_told(one.verdict) for place, (_, one) in enumerate(rows)]
    fails = _bits(bad and weight_of(one.verdict.kind or "") == weight for bad, (_, one) in zip(harmed, rows, strict=True))
    passes = _bits(not bad and one.verdict.outcome != "INCONCLUSIVE" for bad, (_, one) in zip(harmed, rows, strict=True))
    statements: list[_Statement] = []
    candidates = _candidates(rows, trace, fails, passes)
    while fails:
        chosen = max(candidates, key=lambda one: (one.held & fails).bit_count(), default=None)  # the plainest of the widest
        held = 0 if chosen is None else chosen.held & fails
        if chosen is None or not held:
            break
        awaited = [] if chosen.awaited is None else [chosen.awaited]
        members = [row for number, row in enumerate(rows) if held >> number & 1]
        gaps: list[Gap] = [] if chosen.within else [(chosen.first, chosen.awaited)]
        statements.append(_Statement(chosen.first, awaited, chosen.within, members=members, gaps=gaps))
        fails &= ~held
    rest = [row for number, row in enumerate(rows) if fails >> number & 1]
    return statements + ([_Statement(unclear=True, members=rest)] if rest else [])


class _Candidate(NamedTuple):
    """What could be said of some states: those whose bits are set in `held`."""

    held: int
    first: Operation | None
    awaited: Operation | None
    within: Operation | None = None

    def plainness(self, telling: frozenset[int]) -> tuple[bool, bool, int, int]:
        """Of what holds of the same states: the latest operation that has happened, the first that has not.

        Before all others those that a restart can notice (`telling`): a sample leaves open which of several operations it was.
        """
        early, late = (op is not None and op.n not in telling for op in (self.first, self.awaited))
        return early, late, -self.first.n if self.first else 0, self.awaited.n if self.awaited else 0


def _candidates(rows: Sequence[tuple[CrashState, Judged]], trace: Trace, fails: int, passes: int) -> list[_Candidate]:
    """Statements that hold of some failing state and of none that passes, those of the most failing states first."""
    everything = (1 << len(rows)) - 1
    done = [frozenset(state.done) for state, _ in rows]
    bits = [
        (event, _bits(index in one for one in done)) for index, event in enumerate(trace.events) if isinstance(event, Operation)
    ]
    # Operations that have happened in all states, or in none, tell nothing; None is "at any time".
    telling = [(op, held) for op, held in bits if held not in (0, everything)]
    found = []
    for first, happened in [(None, everything), *telling]:
        for awaited, there in [(None, 0), *telling]:
            held = happened & ~there
            if held & fails and not held & passes:
                found.append(_Candidate(held, first, awaited))
    for write in {state.torn.n: state.torn for state, _ in rows if state.torn is not None}.values():
        held = _bits(state.torn is not None and state.torn.n == write.n for state, _ in rows)
        if held & fails and not held & passes:
            found.append(_Candidate(held, None, None, write))
    noticed = _noticed(trace)
    return sorted(found, key=lambda one: (-(one.held & fails).bit_count(), *one.plainness(noticed)))


def _noticed(trace: Trace) -> frozenset[int]:
    """Operations after which a restart may find something else: no syncs, and nothing that is done under a temporary name."""
    noticed, moved = [], set[str]()
    kept = {event.checkpoint for event in trace.events if isinstance(event, Mark)}
    for op in reversed(trace.operations):
        above = {op.path, *(op.path[:place] for place, letter in enumerate(op.path) if letter == "/")}
        if op.operation != "fsync" and (op.operation == "rename" or above & kept or not above & moved):
            noticed.append(op.n)
        moved |= {op.path} if op.operation == "rename" else set()
    return frozenset(noticed)


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << number for number, flag in enumerate(flags) if flag)


def _joined(statements: Sequence[_Statement], trace: Trace) -> list[_Statement]:
    """Statements with one and the same first operation as one: it came ahead of several others."""
    joined: dict[tuple[int, int], _Statement] = {}
    for statement in statements:
        key = (statement.first.n if statement.first else 0, statement.within.n if statement.within else 0)
        known = statement if statement.unclear else joined.setdefault(key, statement)
        if known is not statement:
            known.awaited = [*known.awaited, *statement.awaited]
            known.members = [*known.members, *statement.members]
            known.gaps = [*known.gaps, *statement.gaps]
    return [*_around(list(joined.values()), trace), *(statement for statement in statements if statement.unclear)]


def _around(statements: list[_Statement], trace: Trace) -> list[_Statement]:
    """A gap that a save begins within, or ends within, as one with the same gap of another save: who saves does it every time.

    Saves in the background begin and end where nothing of the disk tells: one may be open from the start, and again at the end.
    """
    plain = [one for one in statements if one.within is None]
    early = [one for one in plain if one.first is None and one.awaited]
    late = [one for one in plain if one.first is not None and not one.awaited]
    whole = [one for one in plain if one.first is not None and one.awaited]
    gone: list[_Statement] = []
    for statement in [*early, *late]:
        same = [one for one in whole if _weight(one) == _weight(statement) and _ends(one, statement, trace)]
        if not same and statement in early and len(early) == len(late) == 1 and _weight(late[0]) == _weight(statement):
            same = [late.pop()]
            same[0].awaited = statement.awaited
        if same:
            same[0].members = [*same[0].members, *statement.members]
            same[0].gaps = [*same[0].gaps, *statement.gaps]
            gone.append(statement)
    return [one for one in statements if not any(one is other for other in gone)]


def _ends(whole: _Statement, half: _Statement, trace: Trace) -> bool:
    """Whether half a gap ends, or begins, as a whole one does."""
    if half.first is not None and whole.first is not None:
        return phrase(half.first, trace) == phrase(whole.first, trace)
    return {phrase(op, trace) for op in half.awaited} <= {phrase(op, trace) for op in whole.awaited}


def _weight(statement: _Statement) -> int:
    return min(weight_of(one.verdict.kind or "") for _, one in statement.members)


def _cause_of_kills(statement: _Statement, trace: Trace, order: Order) -> Cause:
    first, awaited, within = statement.first, statement.awaited, statement.within
    sort, missing = "gap", _listed([phrase(op, trace) for op in awaited])
    felt = all(one.verdict.kind in FELT_IN_NUMBERS for _, one in statement.members)
    harm = "no resume is exact" if felt else "nothing that was saved is whole"
    if statement.unclear:
        text = "of something that no operation tells from states that pass: perhaps the restart does not always do the same"
    elif within is not None:
        text = f"a kill in the middle of {phrase(within, trace)} leaves a part of it"
    elif first is None:
        text = f"{harm} before {missing or 'the end of the save'}"
    elif not awaited:
        text = f"{harm} after {phrase(first, trace)}"
    elif _is_in_place(first, awaited, trace):
        text = f"{general(first.path)} is written in place: {phrase(first, trace)} comes before {missing}"
    elif all(op.rank == first.rank or order.enforced((first.rank, first.index), (op.rank, op.index)) for op in awaited):
        text = f"{phrase(first, trace)} comes before {missing}"
    else:
        sort, text = "order", f"{phrase(first, trace)} does not wait for {missing}"
    return replace(_cause(sort, text, statement, first or within, missing), gaps=tuple(statement.gaps))


def _is_in_place(first: Operation, awaited: Sequence[Operation], trace: Trace) -> bool:
    """Whether a file is changed under the name that it keeps, and the change is not yet complete."""
    same = all(op.path == first.path and op.operation in ("write", "truncate") for op in awaited)
    kept = not any(op.operation in ("rename", "unlink") and op.path == first.path and op.n > first.n for op in trace.operations)
    return same and kept and first.operation in ("open", "write", "truncate")


# -- power cuts ----------------------------------------------------------------------------------------------------------


def _of_losses(rows: Sequence[tuple[CrashState, Judged]], trace: Trace) -> list[_Statement]:
    """The smallest losses that are enough for a failure; what also loses more is counted with them."""
    enough: list[tuple[frozenset[str], _Statement]] = []
    with_texts = [(state, one, [lost_text(change, state, trace) for change in state.lost]) for state, one in rows]
    for state, one, texts in sorted(with_texts, key=lambda row: (len(set(row[2])), len(row[0].done))):
        losses = frozenset(map(_without_rank, texts))
        statement = next((known for small, known in enough if small <= losses), None)
        if statement is None:
            example = next((change.operation for change in reversed(state.lost) if change.operation), None)
            statement = _Statement(example=example)
            enough.append((losses, statement))
        small = next(small for small, known in enough if known is statement)
        statement.lost += [text for text in texts if _without_rank(text) in small and text not in statement.lost]
        statement.members.append((state, one))
    return _of_one_sync([statement for _, statement in enough])


def _of_one_sync(statements: Sequence[_Statement]) -> list[_Statement]:
    """Losses of several files of a checkpoint that lack the same sort of sync, as one: who never syncs has one defect."""
    joined: dict[tuple[object, ...], _Statement] = {}
    for statement in statements:
        syncs = frozenset(_FILE_SYNC if _FILE_SYNC in text else "a directory's" for text in statement.lost)
        names = frozenset(_checkpoint_in(text) for text in statement.lost)
        weight = min(weight_of(one.verdict.kind or "") for _, one in statement.members)
        known = joined.setdefault((syncs, names, weight), statement)
        if known is not statement:
            known.lost += [text for text in statement.lost if text not in known.lost]
            known.members += statement.members
    return list(joined.values())


def _checkpoint_in(text: str) -> str:
    """The checkpoint that a loss is of, without its number: "checkpoint-*"; "" for what lies in no folder of its own."""
    name = re.search(r"(?:content of|creation of|rename of|unlink of|mkdir of) ([^ /]+)/", text)
    return re.sub(r"[\d*]+", "*", name[1]) if name else ""


def _without_rank(text: str) -> str:
    # The shards of all ranks lack the same sync in the same place of the program.
    return re.sub(r"rank ?\d+", "rank", text)


def _with_told(losses: list[_Statement], told: Sequence[tuple[CrashState, Judged]]) -> list[_Statement]:
    """Adds the states in which a missing sync was only seen to the cut that brings it out, if there was one."""
    for state, one in told:
        root = one.verdict.root
        assert root is not None
        data = root.expected == "a sync of the file"
        name = general(root.file or "")
        text = f"the content of {name} (no {_FILE_SYNC})" if data else f"the name {name} (no {_DIRECTORY_SYNC})"
        same = [known for known in losses if any(lost.startswith(f"the content of {name} ") for lost in known.lost) and data]
        alike = [known for known in losses if any((_FILE_SYNC in lost) == data for lost in known.lost)]
        statement = next(iter(same or alike), None)
        if statement is None:
            statement = _Statement(lost=[text])
            losses.append(statement)
        statement.members.append((state, one))
    return losses


def _cause_of_losses(statement: _Statement) -> Cause:
    missing = _listed(statement.lost)
    cut = [row for row in statement.members if not _is_told(row[1].verdict)]
    if not cut:
        return _cause(
            "durability", f"a save is reported as done while a power cut could still take {missing}", statement, None, missing
        )
    when = what_done(min(cut, key=lambda row: _plainest(row[0]))[0])
    return _cause("durability", f"a power cut {when} takes {missing}", statement, statement.example, missing)


def what_done(state: CrashState) -> str:
    """When a state is reached, in words: after which operation, and whether the save had been reported."""
    last = state.torn or state.last
    after = "before the first operation" if last is None else f"after {phrase(last)}"
    return after + (f" (when {general(state.owed[-1])} had been reported as saved)" if state.owed else "")


def lost_text(change: Change, state: CrashState, trace: Trace) -> str:
    """An unsynced change and the sync that it lacks, in words that are the same for every step and temporary name."""
    operation = change.operation
    if operation is None:
        return "what was there before"
    if change.sort == "data":
        sync = _sync(_FILE_SYNC, operation, operation.path, trace)
        return general(f"the content of {_name_then(operation, state, trace)} by rank {operation.rank} ({sync})")
    target = operation.to or operation.path
    directory = target.rpartition("/")[0] or "the checkpoint directory"
    verb = "creation" if operation.operation in ("open", "mkdir") else operation.operation
    sync = _sync(f"fsync of {directory}", operation, target.rpartition("/")[0] or ".", trace)
    return general(f"the {verb} of {target} by rank {operation.rank} ({sync})")


def _sync(what: str, operation: Operation, path: str, trace: Trace) -> str:
    """That a sync is missing, or comes after the moment of the cut and before the save is reported as done."""
    begun = False
    for event in trace.events:
        if isinstance(event, Mark):
            if begun and (event.rank, event.what, event.moment) == (0, "save", "end"):
                break
        elif event.n <= operation.n:
            begun = event.n == operation.n
        elif event.operation == "rename" and event.to and (path == event.path or path.startswith(event.path + "/")):
            path = event.to + path.removeprefix(event.path)
        elif event.operation == "fsync" and event.path == path and event.call != "sync_file_range":  # no promise of anything
            return f"the {what} comes too late"
    return f"no {what}"


def _name_then(operation: Operation, state: CrashState, trace: Trace) -> str:
    """The name that a written file had when the power went: it was written under a temporary one."""
    path = operation.path
    for index in state.done:
        event = trace.events[index]
        if isinstance(event, Operation) and event.operation == "rename" and event.n > operation.n and event.to:
            if event.path == path:
                path = event.to
            elif path.startswith(event.path + "/"):
                path = event.to + path.removeprefix(event.path)
    return path


# -- words ---------------------------------------------------------------------------------------------------------------


def _cause(sort: str, text: str, statement: _Statement, operation: Operation | None, missing: str) -> Cause:
    members = statement.members
    kinds = Counter(one.verdict.kind or "" for _, one in members)
    shown = list({id(one): one for _, one in sorted(members, key=lambda row: _plainest(row[0]))}.values())
    # A run directory shows the first of its states; a loss that did harm shows more than one that was only seen, or left rubbish.
    own = {id(one) for state, one in members if state is one.state}
    shown.sort(key=lambda one: (_is_told(one.verdict), weight_of(one.verdict.kind or ""), id(one) not in own))
    shortest = shown[0]
    kind = shortest.verdict.kind or ""
    others = ", ".join(f"{other} in {count}" for other, count in sorted(kinds.items()) if other != kind)
    return Cause(
        sort=sort,
        kind=kind,
        component=shortest.verdict.component,
        text=text + (f" ({others} of them)" if others else ""),
        num_states=len(members),
        shortest=shortest,
        operation="" if operation is None else operation.operation,
        rank=-1 if operation is None else operation.rank,
        file="" if operation is None else operation.to or operation.path,
        missing=missing,
        kept=tuple(one.path for one in shown[:KEPT_PER_CAUSE]),
    )


def _plainest(state: CrashState) -> tuple[int, bool, bool, int]:
    return len(state.lost), state.torn is not None, not state.natural, len(state.done)


def phrase(operation: Operation, trace: Trace | None = None) -> str:
    """An operation in words; of several writes in a row, which one, where the trace is given."""
    name = operation.to or operation.path
    what = "the checkpoint directory" if name == "." else name
    which = ""
    if trace is not None and operation.operation == "write":
        own = trace.of_rank(operation.rank)
        before, after = (own[i] if 0 <= i < len(own) else None for i in (operation.index - 1, operation.index + 1))
        begins, ends = (one is None or not _is_write_of(one, operation) for one in (before, after))
        which = "" if begins and ends else "first " if begins else "last " if ends else ""
    return general(f"rank {operation.rank}'s {which}{operation.operation} of {what}")


def _is_write_of(one: Operation, other: Operation) -> bool:
    """Whether both write one file, which another rank may have renamed between them, or a directory above it."""
    return one.operation == "write" and (one.path == other.path or 0 != one.inode == other.inode)


def _listed(texts: Sequence[str]) -> str:
    named = list(dict.fromkeys(texts))
    more = len(named) - NAMED_AT_MOST
    named = [*named[:NAMED_AT_MOST], f"{more} more"] if more > 0 else named
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}" if named else ""


def general(text: str) -> str:
    """A text in which numbers of steps and drawn names are left open."""
    text = re.sub(r"\.\d+-[0-9a-f]{8}(?=\.)", ".*", text)
    # Of small numbers those that stand in the name of a checkpoint (step-6.pt, epoch=0-step=8.ckpt, checkpoint-4/model.pt).
    text = re.sub(r"(?<![^\s(])[A-Za-z][\w.=-]*", lambda name: re.sub(r"(?<=[-_=])\d+(?=$|[-_.=])", "*", name[0]), text)
    return re.sub(r"\d{3,}", "*", text)
