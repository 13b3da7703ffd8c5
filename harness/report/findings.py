"""What was found by a check: every cause once over all its parts, and each part in a line. Pure.

Responsible for: grouping what different parts have found of one cause.
Not responsible for: what a single exploration says (`harness.report.exploration`), or how it is shown
(`harness.report.summary`, `harness.report.junit`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.causes import Cause
from harness.check import Case, Check, Part
from harness.check_plan import AGAIN, ERRORS, KILLS
from harness.error_loop import ErrorCause
from harness.oracle.verdict import Verdict, decide
from harness.report.exploration import coverage_lines, num
from harness.report.text import render
from harness.sweep import DamageCause

_CRASHED = ("resume-crashed", "process")
# Under these a restart that ended by itself is told of (`harness.oracle.completion`).
_CRASHES = ("resume-crashed", "last-good-lost", "bad-refusal")
# How it shows that one component was not restored: as another loss, as other samples, or in its digest alone.
_NOT_RESTORED = ("diverged", "data-repeated", "data-skipped", "state-lost")


@dataclass(frozen=True)
class Found:
    """One cause, wherever it was seen.

    Attributes:
        kind: the failure kind.
        component: what was lost or damaged.
        text: why, in words.
        seen: in which parts and cases, in words.
        lines: the first case: what was seen there, the fault.
        repeat: the replay file.
        key: what makes it another cause than others.
    """

    kind: str
    component: str
    text: str
    seen: tuple[str, ...]
    lines: tuple[str, ...]
    repeat: Path
    key: tuple[str, ...] = ()


def findings(check: Check) -> list[Found]:
    """All causes, in the order in which they were found, which is that of the parts."""
    found: dict[tuple[str, ...], Found] = {}
    plain, torn, never = _plain_findings(check), _torn_saves(check), _never_starts_again(check)
    for part in check.parts:
        for key, one, verdict in _of_part(part, plain):
            # What a save does to the checkpoint before it, it does in a restart too, and when an operation of it fails.
            key = torn.get(key, key) if part.name in (AGAIN, ERRORS) else key
            # Wherever such a job is cut, its restart ends in the same words.
            key = _CRASHED if never and never in _last_words(verdict) else key
            known = found.get(key)
            found[key] = replace(one, key=key) if known is None else replace(known, seen=(*known.seen, *one.seen))
    return list(found.values())


def _torn_saves(check: Check) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Kind and component → the key of the first cause of that sort that a kill in a save has shown."""
    torn: dict[tuple[str, ...], tuple[str, ...]] = {}
    for part in check.parts:
        for cause in part.exploration.causes if part.exploration else ():
            if cause.sort in ("gap", "order"):
                torn.setdefault(_key(cause.kind, cause.component), _key(cause.kind, cause.component, cause.text))
    return torn


def _never_starts_again(check: Check) -> str:
    """The last words of a job that never resumes, whatever it is to resume from; "" where a restart has ever gone on.

    No save is to blame for what follows plain kills already, and everywhere in the same words.
    """
    verdicts = [verdict for part in check.parts for verdict in _verdicts(part)]
    # One that was killed before its first save has nothing to resume from, and passes.
    failed = [case.verdict for part in check.parts if part.name == KILLS for case in part.cases if case.verdict.outcome == "FAIL"]
    if not failed or any(any(verdict.resumed_from) for verdict in verdicts):
        return ""
    return min(set.intersection(*map(_last_words, failed)), default="")


def _verdicts(part: Part) -> Iterator[Verdict]:
    yield from (case.verdict for case in part.cases)
    yield from (one.verdict for one in (part.exploration.judged if part.exploration else ()))


def _last_words(verdict: Verdict) -> set[str]:
    """What the processes said that ended by themselves, without what differs from run to run."""
    crashes = [finding.message for finding in verdict.findings if finding.oracle == "completion" and finding.kind in _CRASHES]
    return {re.sub(r"0x[0-9a-f]+|[0-9]+", "*", message.partition(": ")[2]) for message in crashes} - {""}


def _plain_findings(check: Check) -> set[tuple[str, str]]:
    """What is found after a plain kill already, which therefore comes of no damage."""
    cases = [case for part in check.parts if part.name == KILLS for case in part.cases]
    return {(finding.kind, finding.component) for case in cases for finding in case.verdict.findings}


def _without_damage(verdict: Verdict, plain: set[tuple[str, str]]) -> Verdict:
    """A damaged checkpoint was taken for a good one where it is felt; what is felt without damage too is no sign of that."""
    others = tuple(finding for finding in verdict.findings if finding.kind != "corrupt-accepted")
    # A generator that stands elsewhere is felt in a loss, or is no matter: then something else is what is felt.
    new = [one for one in others if (one.kind, one.component) not in plain and not one.component.startswith("rng")]
    if not others or len(others) == len(verdict.findings) or new:
        return verdict
    outcome, ordered, component = decide(others)
    return replace(verdict, outcome=outcome, findings=ordered, component=component)


def _of_part(part: Part, plain: set[tuple[str, str]]) -> Iterator[tuple[tuple[str, ...], Found, Verdict]]:
    for case in part.cases:
        if case.verdict.outcome == "FAIL":
            verdict = _without_damage(case.verdict, plain)
            yield _key(verdict.kind or "", verdict.component), _of_case(replace(case, verdict=verdict)), verdict
    for cause in part.exploration.causes if part.exploration else ():
        # A resume that is never exact shows in every case that resumes: one cause, however the job was ended.
        key = _key(cause.kind, cause.component)
        known = _has_no_end(cause) and key in {_key(*one) for one in plain}
        named = key if known else _key(cause.kind, cause.component, *_told_apart_by(cause))
        yield named, _of_cause(part, cause), cause.shortest.verdict
    for other in part.search.causes if part.search else ():
        yield (other.kind, other.component, other.text), _of_search(part, other), other.first.verdict


def _key(kind: str, component: str, *more: str) -> tuple[str, ...]:
    """What makes a finding another one than others: of a component that no resume restores, not where the loss is first felt."""
    if kind in _NOT_RESTORED and component not in ("", "none") and not more:
        return "not restored", component
    return (kind, component, *more)


def _has_no_end(cause: Cause) -> bool:
    """Whether it begins at some operation and lasts: then a kill between two saves shows the same."""
    return cause.sort == "gap" and bool(cause.gaps) and all(late is None for _, late in cause.gaps)


def _told_apart_by(cause: Cause) -> tuple[str, ...]:
    """What makes it another cause than one of the same kind; a missing sync is the same wherever the power is cut."""
    if cause.sort == "resume":
        return ()
    return (re.sub(r"[0-9]+", "*", cause.missing),) if cause.sort == "durability" else (cause.text,)


def _of_case(case: Case) -> Found:
    first, *more = render(case.verdict, case.path).splitlines()
    lines = tuple(line.strip() for line in more if not line.strip().startswith("repeat: "))
    text = first.partition(": ")[2]
    return Found(case.verdict.kind or "", case.verdict.component, text, (case.text,), lines, case.path / "plan.toml")


def _of_cause(part: Part, cause: Cause) -> Found:
    root = cause.shortest.verdict.root
    lines = [f"the first: {root.message}"] if root is not None else []
    lines += _diagnosis(cause.shortest.verdict)
    lines += [f"fault: {sentence}" for sentence in cause.shortest.state.faults]
    seen = f"{num(cause.num_states, 'state')} of {part.name}"
    return Found(cause.kind, cause.component, cause.text, (seen,), tuple(lines), cause.kept[0] / "plan.toml")


def _of_search(part: Part, cause: ErrorCause | DamageCause) -> Found:
    path = cause.first.directory if isinstance(cause, ErrorCause) else cause.first.path
    seen = f"{num(cause.num_cases, 'case')} of {part.name}"
    root = cause.first.verdict.root
    lines = [f"the first: {root.message}"] if root is not None else []
    lines += _diagnosis(cause.first.verdict)
    return Found(cause.kind, cause.component, cause.text, (seen,), tuple(lines), path / "plan.toml")


def _diagnosis(verdict: Verdict) -> list[str]:
    return [] if verdict.diagnosis is None else [f"diagnosis: {verdict.diagnosis.text}"]


def part_findings(part: Part) -> list[Found]:
    """What was found in one part, by itself."""
    return [found for _, found, _ in _of_part(part, set())]


def part_text(part: Part) -> str:
    """What came of a part, in a line."""
    if part.blocked:
        return part.blocked
    if part.exploration is not None:
        if part.exploration.inconclusive:
            return f"nothing can be said: {part.exploration.inconclusive}"
        untried = "" if part.exploration.judged else "the budget ended before any of them was tried (--budget): "
        return f"{untried}{coverage_lines(part.exploration)[0]}"
    if part.search is not None:
        return part.search.describe().splitlines()[0].partition(": ")[2]
    good = sum(case.verdict.outcome == "PASS" for case in part.cases)
    note = f" ({'; '.join(part.notes)})" if part.notes else ""
    return f"{good} of {num(len(part.cases), 'case')} held{note}"


def undecided(check: Check) -> Iterator[str]:
    """What could not be judged, in words."""
    for part in check.parts:
        for case in part.cases:
            if case.verdict.outcome == "INCONCLUSIVE":
                yield f"{part.name}: {case.text}: {case.verdict.root.message if case.verdict.root else ''}; see {case.path}"
        judged = part.exploration.judged if part.exploration else ()
        open_ones = [one for one in judged if one.verdict.outcome == "INCONCLUSIVE"]
        if open_ones:
            root = open_ones[0].verdict.root
            first = root.message if root else ""
            yield f"{part.name}: {num(len(open_ones), 'state')}; the first: {first}; see {open_ones[0].path}"
