"""From what a night of chaos has written to the common document: its `chaos` holds groups, coverage and counts of its own. Pure.

Responsible for: reading these where they are what is expected; what is missing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def common(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a document, with what stands in `chaos` where all documents have it; any other document as it is."""
    night = data.get("chaos")
    if not isinstance(night, Mapping):
        return dict(data)
    cases = [_case(case) for case in _list(data.get("cases")) if isinstance(case, Mapping)]
    shard = _list(night.get("shard"))
    whys = [str(why) for why in (night.get("broken"), night.get("blocked")) if why]
    more = {
        "cases": cases,
        "took_s": night.get("used_s"),
        "shard": f"{shard[0]}/{shard[1]}" if len(shard) == 2 and shard[1] != 1 else "",
        "parts": [{"name": "the night", "outcome": "INCONCLUSIVE", "text": why} for why in whys],
        "findings": [_found(group, cases) for group in _list(night.get("groups")) if isinstance(group, Mapping)],
        "left_out": [f"{night['cut']} cases that had begun: the budget had ended"] if night.get("cut") else [],
        "notes": [
            *(f"regressed: {name}, which was fixed, fails again" for name in _list(night.get("regressed"))),
            *(f"fixed: {name} of the corpus passes" for name in _list(night.get("fixed"))),
            *(f"flaky: {case.get('id')}" for case in cases if case.get("flaky")),
            *map(str, _list(night.get("notes"))),
        ],
        "coverage": _coverage(night.get("coverage")),
    }
    return {**data, **more}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    message = case.get("message")
    text = f"{case.get('verdict')} {case.get('kind')}: {message}" if message else ""
    return {**case, "world_sizes": _list(case.get("ranks")), "text": text, "part": "chaos", "title": f"{case.get('id')}"}


def _found(group: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kind, component = str(group.get("kind")), str(group.get("component"))
    own = [case for case in cases if case.get("kind") == kind and case.get("component") == component]
    first = next((case for case in own if not case.get("flaky")), own[0] if own else {})
    lines = [f"drawn: {first.get('fault')}"] if first else []
    if group.get("smallest"):
        end = "nothing simpler fails" if group.get("complete") else "the budget ended there"
        lines.append(f"smallest: {'; '.join(map(str, _list(group['smallest'])))} ({group.get('runs')} runs; {end})")
    lines += [f"{name}: {group[name]}" for name in ("test", "strace") if group.get(name)]
    return {
        "kind": kind,
        "component": component,
        "text": str(first.get("message") or group.get("part") or ""),
        "seen": [str(case.get("id")) for case in own],
        "lines": lines,
        "shown": str(first.get("replay") or ""),
        "repeat": str(group.get("replay") or first.get("replay") or ""),
        "key": ["chaos", kind, str(group.get("part") or component)],
    }


def _coverage(found: Any) -> dict[str, dict[str, dict[str, int]]]:
    """Counts of effects by operation, by phase and by number of ranks, from points (operation, effect, phase, ranks, count)."""
    tables: dict[str, dict[str, dict[str, int]]] = {}
    points = found.get("points") if isinstance(found, Mapping) else None
    for point in _list(points):
        if not isinstance(point, list) or len(point) != 5 or not isinstance(point[4], int):
            continue
        operation, effect, phase, ranks, count = point
        for title, column in (("operations", operation), ("phases", phase), ("numbers of ranks", f"{ranks} ranks")):
            row = tables.setdefault(f"covered by {title}", {}).setdefault(str(effect), {})
            row[str(column)] = row.get(str(column), 0) + count
    return tables
