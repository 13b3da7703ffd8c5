"""From what a check, a replay or a test session has found to its document (`harness.report.document`). Pure.

Responsible for: what of it is written down. Not responsible for: grouping causes (`harness.report.findings`), or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.check import Check, Part
from harness.oracle.unfelt import told
from harness.oracle.verdict import Verdict
from harness.plan import replay_line
from harness.report.document import CaseRow, Document, FoundRow, PartRow, clean, summary_of
from harness.report.exploration import check_json
from harness.report.findings import Found, findings, part_findings, part_text, undecided
from harness.report.result import result
from harness.report.text import render
from harness.scenario import Scenario
from harness.store import Baseline


def check_document(command: Sequence[str], check: Check, began: str = "") -> Document:
    """The document of a check.

    Args:
        command: the command line that was given.
        check: what was found.
        began: when, as `harness.report.document.now` says it.
    """
    found = check_json(command, check)
    sizes, shard = check.request.scenario.world_sizes, str(check.request.shard or "")
    cases = [{"world_sizes": sizes, "shard": shard} | case for case in found["cases"]]
    more = {
        "cases": cases,
        "began": began,
        "took_s": check.took_s,
        "recording_s": check.recording_s,
        "shard": shard,
        "parts": [_part(part) for part in check.parts],
        "findings": [_found(one) for one in findings(check)],
        "undecided": clean(list(undecided(check))),
        **_unfelt([verdict for part in check.parts for verdict in _verdicts(part)]),
    }
    return Document.model_validate({**clean(found), **more})


def _verdicts(part: Part) -> list[Verdict]:
    """Of all resumes of a part that nothing was damaged for."""
    judged = () if part.exploration is None else part.exploration.judged
    return [case.verdict for case in part.cases] + [one.verdict for one in judged]


def _unfelt(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """What was not restored and not felt, each name once over all resumes: a note, and the same as data."""
    found = {one.name: one for verdict in reversed(verdicts) for one in reversed(verdict.unfelt)}
    several = [found[name] for name in dict.fromkeys(one.name for verdict in verdicts for one in verdict.unfelt)]
    notes = [text] if (text := told(several)) else []
    return {"notes": clean(notes), "unfelt": clean([one.to_json() for one in several])}


def _part(part: Part) -> PartRow:
    lines = tuple(line for one in part_findings(part) for line in found_lines(_found(one)))
    took_s = sum(case.verdict.duration_s for case in part.cases)
    took_s += part.exploration.exploring_s if part.exploration else 0.0
    return PartRow.model_validate(
        clean(
            {
                "name": part.name,
                "outcome": part.outcome,
                "text": part_text(part),
                "explored": not part.cases,
                "lines": lines,
                "duration_s": took_s,
            }
        )
    )


def _found(one: Found) -> FoundRow:
    facts = {"kind": one.kind, "component": one.component, "text": one.text, "seen": one.seen, "lines": one.lines, "key": one.key}
    return FoundRow.model_validate(clean({**facts, "repeat": str(one.repeat)}))


def found_lines(one: FoundRow) -> list[str]:
    """One cause as lines of text."""
    return [f"{one.kind} ({one.component}): {one.text}", *one.lines, f"repeat: {replay_line(one.repeat)}"]


def case_document(
    command: Sequence[str], scenario: Scenario, baseline: Baseline, verdicts: Sequence[tuple[Verdict, Path]], began: str = ""
) -> Document:
    """The document of cases that were run one by one.

    Args:
        command: the command line that was given.
        scenario: what was run.
        baseline: its uninterrupted run.
        verdicts: one per case, with its run directory.
        began: as for `check_document`.
    """
    base = Document.model_validate(clean(result(command, scenario, baseline, [verdict for verdict, _ in verdicts])))
    rows = tuple(case_row(verdict, path, world_sizes=scenario.world_sizes) for verdict, path in verdicts)
    changes = {"cases": rows, "findings": grouped(rows), "began": began, "took_s": sum(row.duration_s or 0.0 for row in rows)}
    return base.model_copy(update=changes)


def case_row(verdict: Verdict, path: Path, *, world_sizes: tuple[int, ...] = (), part: str = "", shard: str = "") -> CaseRow:
    """A case that lies in a run directory."""
    text = "" if verdict.outcome == "PASS" else render(verdict, path)
    more = {"text": text, "world_sizes": world_sizes, "part": part, "shard": shard}
    return CaseRow.model_validate(clean({**verdict.to_json(), **more}))


def grouped(cases: Sequence[CaseRow]) -> tuple[FoundRow, ...]:
    """The failing cases by kind and component, in order: for results that are not those of a check."""
    groups: dict[tuple[str, str], list[CaseRow]] = {}
    for case in cases:
        if case.verdict == "FAIL":
            groups.setdefault((case.kind or "", case.component), []).append(case)
    return tuple(_of_group(*key, members) for key, members in groups.items())


def _of_group(kind: str, component: str, cases: Sequence[CaseRow]) -> FoundRow:
    first = cases[0]
    head, *more = first.text.splitlines() or [""]
    lines = [line.strip() for line in more if not line.strip().startswith("repeat: ")]
    facts = {"kind": kind, "component": component, "text": head.partition(": ")[2] or head or first.fault, "lines": lines}
    return FoundRow.model_validate(
        {**facts, "seen": [case.title or case.id for case in cases], "repeat": first.replay, "key": (kind, component)}
    )


def session_document(command: Sequence[str], cases: Sequence[CaseRow], began: str, took_s: float, shard: str = "") -> Document:
    """The document of a test session.

    Args:
        command: the command line that was given.
        cases: in the order in which they ended.
        began: as for `check_document`.
        took_s: seconds.
        shard: the share of all tests.
    """
    summary = summary_of(cases, took_s)
    facts = {"command": tuple(command), "began": began, "took_s": took_s, "shard": shard, "summary": summary}
    return Document.model_validate({**facts, "cases": tuple(cases), "findings": grouped(cases)})
