"""What `harness check` and `harness trace` found, as text and as JSON. Pure.

Responsible for: saying what was covered (how many states exist, were built, were equal and judged once), every cause once, and
the command that repeats it. Not responsible for: where it is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import __version__
from harness.causes import Cause
from harness.check import Case, Check, Part
from harness.error_loop import Injected
from harness.explore import Exploration
from harness.oracle.verdict import Verdict, public_component
from harness.plan import replay_line
from harness.report.result import SCHEMA
from harness.report.text import render


def check_text(check: Check) -> str:
    """All parts, then the outcome."""
    lines = [line for part in check.parts for line in part_lines(part)]
    causes = sum(len(found.causes) for part in check.parts for found in (part.exploration, part.search) if found)
    failed = sum(case.verdict.outcome == "FAIL" for part in check.parts for case in part.cases)
    summary = (
        f"{check.outcome}: {num(causes + failed, 'finding')}; recorded in {check.recording_s:.1f} s, all in {check.took_s:.1f} s"
    )
    return "\n".join([*lines, summary])


def part_lines(part: Part) -> list[str]:
    """One part of a check."""
    if part.blocked:
        return [f"{part.outcome} {part.name}: {part.blocked}"]
    if part.exploration is not None:
        return [f"{part.outcome} {part.name}", *(f"  {line}" for line in exploration_lines(part.exploration))]
    if part.search is not None:
        first, *more = part.search.describe().splitlines()
        return [f"{part.outcome} {part.name}: {first.partition(': ')[2]}", *(f"  {line}" for line in more)]
    good = sum(case.verdict.outcome == "PASS" for case in part.cases)
    lines = [f"{part.outcome} {part.name}: {good} of {num(len(part.cases), 'case')} resumed exactly"]
    lines += [f"  {note}" for note in part.notes]
    lines += [line for case in part.cases if case.verdict.outcome != "PASS" for line in _case_lines(case)]
    return lines + ([f"  {num(part.left_out, 'case')} left out: the budget was used up"] if part.left_out else [])


def _case_lines(case: Case) -> list[str]:
    return [f"  {case.text}", *(f"    {line}" for line in render(case.verdict, case.path).splitlines())]


def exploration_lines(exploration: Exploration) -> list[str]:
    """What was covered, and each cause."""
    if exploration.inconclusive:
        return [f"nothing can be said: {exploration.inconclusive}"]
    lines = coverage_lines(exploration)
    for number, cause in enumerate(exploration.causes, 1):
        lines += cause_lines(number, cause)
    undecided = [judged for judged in exploration.judged if judged.verdict.outcome == "INCONCLUSIVE"]
    if undecided:
        first = undecided[0]
        reason = first.verdict.root.message if first.verdict.root else ""
        lines.append(f"{num(len(undecided), 'state')} could not be judged; the first: {reason}")
        lines.append(f"  look at {first.path}")
    return lines


def coverage_lines(exploration: Exploration) -> list[str]:
    """How many states there are, and what was done with them."""
    judged = sum(one.num_states for one in exploration.judged)
    lines = [coverage_text(_explored(exploration), judged, exploration.enumeration.num_points_bounded)]
    if exploration.not_asked:
        lines.append(f"a sample: {num(exploration.not_asked, 'distinct state')} left out (--crash-points all takes them all)")
    if exploration.elsewhere:
        lines.append(f"{num(exploration.elsewhere, 'distinct state')} belong to the other shares (--shard)")
    if exploration.left_out:
        lines.append(f"{num(exploration.left_out, 'distinct state')} left out: the budget was used up (--budget)")
    return lines


def coverage_text(facts: Mapping[str, Any], judged: int, bounded: int = 0) -> str:
    """How much of an exploration was done, in a line.

    Args:
        facts: as in `coverage` of the document.
        judged: states that were judged, equal ones counted each.
        bounded: crash points that were left out; negative where nobody knows how many.
    """
    share = 100 * judged / facts["states"] if facts["states"] else 0.0
    points = num(facts["crash_points"], "crash point")
    if bounded:
        more = "more, in other orders of the ranks," if bounded < 0 else f"{bounded} more"
        points += f" ({more} exist and were left out)"
    return (
        f"{points}, {num(facts['states'], 'state')} ({facts['power_states']} of them after a power cut), "
        f"{facts['distinct']} distinct, {num(facts['resumes'], 'real resume')}: {share:.0f} % covered "
        f"in {facts['duration_s']:.1f} s"
    )


def cause_lines(number: int, cause: Cause) -> list[str]:
    """One cause: how many states fail of it, why, the first one, and how to see it again."""
    verb = "fails" if cause.num_states == 1 else "fail"
    root = cause.shortest.verdict.root
    lines = [f"{number}. {cause.kind} ({cause.component}): {num(cause.num_states, 'state')} {verb}: {cause.text}"]
    if root is not None:
        lines.append(f"   the first: {root.message}")
    lines += [f"   fault: {sentence}" for sentence in cause.shortest.state.faults]
    return [*lines, f"   repeat: {replay_line(cause.kept[0] / 'plan.toml')}"]


def num(count: int, word: str) -> str:
    """A count with its word, in the plural where it must be."""
    return f"{count} {word}{'s' * (count != 1)}"


def check_json(command: Sequence[str], check: Check) -> dict[str, Any]:
    """The document of `--json` (`harness.result/1`): one case per cause and per distinct state that passed, plus coverage."""
    cases = [case for part in check.parts for case in _part_cases(part)]
    counts = {key: sum(case["verdict"] == key.upper() for case in cases) for key in ("pass", "fail", "inconclusive")}
    explorations = [part.exploration for part in check.parts if part.exploration]
    return {
        "schema": SCHEMA,
        "harness": __version__,
        "command": list(command),
        "seed": check.request.scenario.seed,
        "baseline": {
            "steps": check.steps or getattr(check.request.scenario.workload, "steps", None),
            # null: there was no uninterrupted run that anything is known of.
            "deterministic": not any(exploration.inconclusive for exploration in explorations)
            if check.steps or explorations
            else None,
        },
        "summary": {**counts, "cases_per_min": 60 * len(cases) / check.took_s if check.took_s else None},
        "coverage": [_coverage(part) for part in check.parts],
        "left_out": list(check.left_out),
        "causes": [_cause(part, cause) for part in check.parts if part.exploration for cause in part.exploration.causes],
        "cases": cases,
    }


def _part_cases(part: Part) -> list[dict[str, Any]]:
    exploration = part.exploration
    judged = () if exploration is None else exploration.judged
    found = [_case(part, one.verdict, one.path, "; ".join(one.state.faults), one.num_states) for one in judged]
    searched = part.search.judged if part.search else ()
    found += [_case(part, s.verdict, s.directory if isinstance(s, Injected) else s.path, s.verdict.fault) for s in searched]
    return found + [_case(part, case.verdict, case.path, case.text) for case in part.cases]


def _case(part: Part, verdict: Verdict, path: Path, title: str, num_states: int = 1) -> dict[str, Any]:
    text = "" if verdict.outcome == "PASS" else render(verdict, path)
    return {**verdict.to_json(), "part": part.name, "title": title, "states": num_states, "text": text}


def _coverage(part: Part) -> dict[str, Any]:
    exploration = part.exploration
    if exploration is None:
        blocked = {"inconclusive": part.blocked} if part.blocked else {}
        return blocked | {"part": part.name, "cases": len(part.cases), "left_out": part.left_out, "notes": list(part.notes)}
    return {"part": part.name, "inconclusive": exploration.inconclusive, **_explored(exploration)}


def _explored(exploration: Exploration) -> dict[str, Any]:
    found = exploration.enumeration
    return {
        "crash_points": found.num_points,
        "states": len(found.states),
        "power_states": found.num_power,
        "distinct": exploration.num_states,
        "judged": len(exploration.judged),
        "resumes": exploration.num_resumes,
        "left_out": exploration.left_out,
        "not_asked": exploration.not_asked,
        "elsewhere": exploration.elsewhere,
        "duration_s": exploration.exploring_s,
    }


def _cause(part: Part, cause: Cause) -> dict[str, Any]:
    return {
        "part": part.name,
        "sort": cause.sort,
        "kind": cause.kind,
        "component": public_component(cause.component),
        "text": cause.text,
        "states": cause.num_states,
        "operation": cause.operation,
        "rank": cause.rank,
        "file": cause.file,
        "missing": cause.missing,
        "faults": list(cause.shortest.state.faults),
        "replay": str(Path(cause.kept[0]) / "plan.toml"),
    }
