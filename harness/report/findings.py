"""What was found of a command: every cause once over all parts, as text, as JUnit XML, and as Markdown. Pure.

Responsible for: grouping what different parts have found of one cause, and saying what was left out.
Not responsible for: what a single exploration says (`harness.report.exploration`), or where this is printed.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
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

_SHOWN = 6


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
    """

    kind: str
    component: str
    text: str
    seen: tuple[str, ...]
    lines: tuple[str, ...]
    repeat: Path


def findings(check: Check) -> list[Found]:
    """All causes, in the order in which they were found, which is that of the parts."""
    found: dict[tuple[str, ...], Found] = {}
    plain, torn = _plain_findings(check), _torn_saves(check)
    for part in check.parts:
        for key, one in _of_part(part, plain):
            # What a save does to the checkpoint before it, it does in a restart too, and when an operation of it fails.
            key = torn.get(key, key) if part.name in (AGAIN, ERRORS) else key
            known = found.get(key)
            found[key] = one if known is None else replace(known, seen=(*known.seen, *one.seen))
    return list(found.values())


def _torn_saves(check: Check) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Kind and component → the key of the first cause of that sort that a kill in a save has shown."""
    torn: dict[tuple[str, ...], tuple[str, ...]] = {}
    for part in check.parts:
        for cause in part.exploration.causes if part.exploration else ():
            if cause.sort in ("gap", "order"):
                torn.setdefault((cause.kind, cause.component), (cause.kind, cause.component, cause.text))
    return torn


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


def _of_part(part: Part, plain: set[tuple[str, str]]) -> Iterator[tuple[tuple[str, ...], Found]]:
    for case in part.cases:
        if case.verdict.outcome == "FAIL":
            verdict = _without_damage(case.verdict, plain)
            yield (verdict.kind or "", verdict.component), _of_case(replace(case, verdict=verdict))
    for cause in part.exploration.causes if part.exploration else ():
        # A resume that is never exact shows in every case that resumes: one cause, however the job was ended.
        key = (cause.kind, cause.component, *_told_apart_by(cause))
        yield key, _of_cause(part, cause)
    for other in part.search.causes if part.search else ():
        yield (other.kind, other.component, other.text), _of_search(part, other)


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


def text(check: Check) -> str:
    """The parts, a line each; then every finding; then what could not be judged and what was left out; then the outcome."""
    lines = [line for part in check.parts for line in _part_lines(part)]
    found = findings(check)
    for number, one in enumerate(found, 1):
        lines += ["", f"{number}. {one.kind} ({one.component}): {one.text}"]
        lines += [f"   {line}" for line in one.lines]
        lines += [f"   seen: {_seen(one)}", f"   repeat: harness replay {one.repeat}"]
    undecided = list(_undecided(check))
    if undecided:
        lines += ["", "could not be judged:", *(f"  {line}" for line in undecided)]
    if check.left_out:
        lines += ["", "left out:", *(f"  {what}" for what in check.left_out)]
    return "\n".join([*lines, "", _outcome(check, found)])


def _outcome(check: Check, found: list[Found]) -> str:
    return (
        f"{check.outcome}: {num(len(found), 'finding')}; {num(_num_cases(check), 'case')}; "
        f"uninterrupted runs {check.recording_s:.1f} s, all in {check.took_s:.1f} s"
    )


def _num_cases(check: Check) -> int:
    explored = sum(len(part.exploration.judged) for part in check.parts if part.exploration)
    searched = sum(len(part.search.judged) for part in check.parts if part.search)
    return explored + searched + sum(len(part.cases) for part in check.parts)


def _seen(found: Found) -> str:
    more = len(found.seen) - _SHOWN
    return "; ".join(found.seen[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _part_lines(part: Part) -> list[str]:
    head = f"{part.outcome:<12} {part.name}"
    if part.blocked:
        return [f"{head}: {part.blocked}"]
    if part.exploration is not None:
        if part.exploration.inconclusive:
            return [f"{head}: nothing can be said: {part.exploration.inconclusive}"]
        untried = "" if part.exploration.judged else "the budget ended before any of them was tried (--budget): "
        return [f"{head}: {untried}{coverage_lines(part.exploration)[0]}"]
    if part.search is not None:
        return [f"{head}: {part.search.describe().splitlines()[0].partition(': ')[2]}"]
    good = sum(case.verdict.outcome == "PASS" for case in part.cases)
    note = f" ({'; '.join(part.notes)})" if part.notes else ""
    return [f"{head}: {good} of {num(len(part.cases), 'case')} held{note}"]


def _undecided(check: Check) -> Iterator[str]:
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


def junit(check: Check) -> str:
    """JUnit XML: one test case per case that was run from its start, one per exploration or search, one per blocked part."""
    suite = ET.Element("testsuite", name="harness check", time=f"{check.took_s:.3f}")
    for part in check.parts:
        for case in part.cases:
            duration = f"{case.verdict.duration_s:.3f}"
            element = ET.SubElement(suite, "testcase", classname=part.name, name=case.text, time=duration)
            _say(element, case.verdict.outcome, case.verdict.kind or "", render(case.verdict, case.path))
        if not part.cases:
            element = ET.SubElement(suite, "testcase", classname=part.name, name=part.name, time="0")
            one = "\n\n".join(_found_text(found) for _, found in _of_part(part, set()))
            _say(element, part.outcome, part.outcome, one or "\n".join(_part_lines(part)))
    counts = {"tests": len(suite), "failures": len(suite.findall("testcase/failure")), "errors": 0}
    counts["skipped"] = len(suite.findall("testcase/skipped"))
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _say(element: ET.Element, outcome: str, kind: str, text: str) -> None:
    # JUnit knows no third outcome: what could not be judged has not been tested.
    if outcome != "PASS":
        child = ET.SubElement(
            element, "failure" if outcome == "FAIL" else "skipped", message=_plain(text.splitlines()[0]), type=kind
        )
        child.text = _plain(text)


def _plain(text: str) -> str:
    """What XML can hold: a job may print anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _found_text(found: Found) -> str:
    return "\n".join([f"{found.kind} ({found.component}): {found.text}", *found.lines, f"repeat: harness replay {found.repeat}"])


def markdown(check: Check) -> str:
    """A summary as CI systems show it."""
    found = findings(check)
    lines = [f"## harness check: {check.outcome}", "", _outcome(check, found), "", "| | part | |", "|---|---|---|"]
    for part in check.parts:
        said = _part_lines(part)[0].partition(f"{part.name}: ")[2]
        lines.append(f"| {part.outcome} | {_cell(part.name)} | {_cell(said)} |")
    for number, one in enumerate(found, 1):
        lines += ["", f"### {number}. {one.kind} ({one.component})", "", "```", _found_text(one), f"seen: {_seen(one)}", "```"]
    if check.left_out:
        lines += ["", "Left out:", "", *(f"- {what}" for what in check.left_out)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
