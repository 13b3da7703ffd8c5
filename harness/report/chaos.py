"""What a night of `harness chaos` found: as text, and as JSON (`harness.result/1`, with what chaos adds)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness import __version__
from harness.chaos.coverage import Coverage
from harness.chaos.found import Case, Found
from harness.oracle.verdict import public_component
from harness.plan import replay_line
from harness.report.result import SCHEMA

_SHOWN = 5


def chaos_text(found: Found) -> str:
    """What a terminal shows in the end."""
    lines = [found.broken] if found.broken else []
    lines += [f"INCONCLUSIVE: {found.blocked}"] if found.blocked else []
    for number, (group, cases) in enumerate(found.groups().items(), 1):
        lines += _group(found, number, group, cases)
    lines += [f"regressed: {name}, which was fixed, fails again" for name in found.regressed]
    lines += [f"fixed: {name} of the corpus passes; it stays as a regression" for name in found.fixed]
    lines += [
        f"INCONCLUSIVE case {case.number}: {case.ran.kind}: {case.ran.message}"
        for case in found.cases
        if case.ran is not None and case.ran.outcome == "INCONCLUSIVE" and not case.ran.missed
    ][:_SHOWN]
    lines += [f"note: {text}" for text in found.notes]
    return "\n".join([*lines, *_coverage(found), _summary(found)])


def _group(found: Found, number: int, group: tuple[str, str], cases: Sequence[Case]) -> list[str]:
    flaky = sum(case.flaky for case in cases)
    first = next((case for case in cases if not case.flaky), cases[0])
    assert first.ran is not None
    often = f"{len(cases)} case{'s' * (len(cases) != 1)}" + (f", {flaky} of them flaky" if flaky else "")
    lines = [f"{number}. FAIL {group[0]} ({group[1]}), {often}: {first.ran.message}"]
    lines += [f"   drawn: {first.schedule.text()}"]
    smaller = found.smaller.get(group)
    if smaller is not None:
        end = "nothing simpler fails" if smaller.complete else "the budget ended there"
        lines += [f"   smallest: {'; '.join(smaller.scenario.faults) or 'no fault'} ({smaller.num_runs} runs; {end})"]
        lines += [f"   test: {smaller.files.test}"]
        lines += [f"   strace: {smaller.files.strace}"] if smaller.files.strace else []
        lines += [f"   repeat: {replay_line(smaller.files.replay)}"]
    else:
        lines += [f"   repeat: {replay_line(f'{first.ran.path}/plan.toml')}"]
    if first.flaky and first.again is not None:
        second = first.again.path or "(passed)"
        lines += [f"   flaky: it was {first.again.outcome} when repeated; first run: {first.ran.path}; second: {second}"]
    return lines


def _coverage(found: Found) -> list[str]:
    points = found.coverage.points
    if not points:
        return []
    new = sum(point not in found.before.points for point in points)
    pairs = len(found.coverage.pairs)
    earlier = f", {new} of them for the first time" if found.before.points else ""
    lines = [f"covered: {len(points)} points (operation × effect × phase × ranks){earlier}, {pairs} pairs"]
    for title, key in (("operations", 0), ("effects", 1), ("phases", 2), ("ranks", 3)):
        counts: Counter[str] = Counter()
        for point, count in points.items():
            counts[str(point[key])] += count
        lines.append(f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    return lines


def _summary(found: Found) -> str:
    rate = 60 * len(found.ran) / found.used_s if found.used_s else 0.0
    shard = f", shard {found.request.shard[0]}/{found.request.shard[1]}" if found.request.shard[1] > 1 else ""
    other = found.count("INCONCLUSIVE") - found.missed
    parts = [f"{found.count('PASS')} passed", f"{found.count('FAIL')} failed"]
    parts += [f"{sum(case.flaky for case in found.cases)} of them flaky"] * any(case.flaky for case in found.cases)
    parts += [f"{found.missed} did not fire as drawn"] + [f"{other} could not be judged"] * bool(other)
    parts += [f"{found.cut} cut off by the end of the budget"] * bool(found.cut)
    what = f"{len(found.ran)} schedules in {found.used_s:.0f} s ({rate:.0f} a minute)"
    return f"seed {found.request.seed}{shard}: {what}: {', '.join(parts)}; results: {found.folder}/result.json"


def chaos_json(command: Sequence[str], found: Found) -> dict[str, Any]:
    """The document; each case has `origin` and `flaky` as well, and `chaos` holds coverage, groups and counts."""
    return {
        "schema": SCHEMA,
        "harness": __version__,
        "command": list(command),
        "seed": found.request.seed,
        "began": found.began,
        "baseline": {"steps": found.steps, "deterministic": True if found.steps else None},
        "summary": {
            **{key: found.count(key.upper()) for key in ("pass", "fail", "inconclusive")},
            "cases_per_min": 60 * len(found.ran) / found.used_s if found.used_s else None,
        },
        "cases": [_entry(found, case) for case in found.ran],
        "chaos": {
            "shard": list(found.request.shard),
            "budget_s": found.request.budget_s,
            "used_s": found.used_s,
            "missed": found.missed,
            "cut": found.cut,
            "blocked": found.blocked,
            "broken": found.broken,
            "notes": found.notes,
            "regressed": found.regressed,
            "fixed": found.fixed,
            "coverage": found.coverage.to_json(),
            "before": Coverage.to_json(found.before),
            "groups": [_group_json(found, group, cases) for group, cases in found.groups().items()],
        },
    }


def _entry(found: Found, case: Case) -> dict[str, Any]:
    assert case.ran is not None
    smaller = found.smaller.get(case.ran.group)
    more: dict[str, Any] = {"origin": case.origin, "flaky": case.flaky, "ranks": list(case.schedule.world_sizes)}
    if case.failed:
        more |= {"message": case.ran.message, "smallest": str(smaller.files.replay) if smaller else None}
    if case.again is not None:
        more["again"] = {"verdict": case.again.outcome, "kind": case.again.kind, "replay": case.again.entry["replay"]}
    return {**case.ran.entry, **more}


def _group_json(found: Found, group: tuple[str, str], cases: Sequence[Case]) -> dict[str, Any]:
    smaller = found.smaller.get(group)
    facts: dict[str, Any] = {
        "kind": group[0],
        "component": public_component(group[1]),
        "part": group[1],
        "cases": [case.number for case in cases],
    }
    if smaller is not None:
        facts |= {
            "smallest": list(smaller.scenario.faults),
            "runs": smaller.num_runs,
            "complete": smaller.complete,
            "replay": str(smaller.files.replay),
            "test": str(smaller.files.test),
            "strace": str(smaller.files.strace) if smaller.files.strace else None,
        }
    return facts
