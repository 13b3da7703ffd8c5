"""What replays of a file have shown, and where a search for the first bad one has come to: as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bisection import Bisected
from harness.plan import Expected
from harness.replaying import Replayed
from harness.report.text import render

_ENDS = {
    "good-is-bad": "the good end is bad: what is searched for began earlier, so choose an earlier one",
    "bad-is-good": "the bad end is good: what the file shows does not reproduce there (try --times N if it is not always seen)",
    "no-answer": "an end cannot be judged, and without both there is nothing to search",
}


def once_text(run: Replayed, expected: Expected | None) -> str:
    """One run: its verdict, and what it says of the failure that the file is kept for."""
    text = render(run.verdict, run.path)
    if expected is None:
        return text
    found = f", found {run.verdict.kind} ({run.verdict.component})" if run.verdict.kind else ""
    return f"{text}\n{run.shown}: expected {expected}{'' if run.shown == 'reproduced' else found or ', found PASS'}"


def times_text(runs: Sequence[Replayed], expected: Expected | None) -> str:
    """Several runs: a line each, the first failure in full, and how often it was seen."""
    rows = [("run", "answer", "verdict", "seconds", "run directory")]
    for number, run in enumerate(runs, 1):
        told = f"{run.verdict.kind} ({run.verdict.component})" if run.verdict.kind else "PASS"
        rows.append((str(number), run.shown, told, f"{run.verdict.duration_s:.1f}", str(run.path)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    first = next((run for run in runs if run.shown == "reproduced"), None) or next(
        (run for run in runs if run.verdict.kind), None
    )
    shown = [render(first.verdict, first.path)] if first else []
    what = f" (expected {expected})" if expected else ""
    return "\n".join([*lines, *shown, f"reproducibility {_reproduced(runs)}/{len(runs)}{what}"])


def _reproduced(runs: Sequence[Replayed]) -> int:
    return sum(run.shown == "reproduced" for run in runs)


def replays_json(runs: Sequence[Replayed], expected: Expected | None) -> dict[str, Any]:
    """The further entries of the `--json` file: what was expected, and what each run showed of it."""
    return {
        "expected": {"kind": expected.kind, "component": expected.component} if expected else None,
        "reproduced": {"times": len(runs), "count": _reproduced(runs), "answers": [run.shown for run in runs]},
    }


def bisected_text(found: Bisected) -> str:
    """The first bad one, or why it is not known."""
    titles = found.titles
    runs = f"after {len(found.trials)} runs"
    if found.problem:
        last = found.trials[-1]
        return f"{_ENDS[found.problem]}\n  {titles[last.name]}: {last.why}"
    if found.first_bad is None:
        lines = [f"  {titles[name]}" for name in found.suspects]
        return "\n".join([f"{runs} only such are left that cannot be judged; the first bad one is one of:", *lines])
    trial = next(trial for trial in found.trials if trial.name == found.first_bad)
    lines = [f"first bad: {titles[found.first_bad]}", f"  {trial.why}", f"  found {runs}; its run directory: {trial.path}"]
    return "\n".join(lines)


def bisected_json(found: Bisected) -> dict[str, Any]:
    """The same for programs."""
    return {
        "schema": "harness.bisect/1",
        "first_bad": found.first_bad,
        "title": found.titles.get(found.first_bad or ""),
        "suspects": list(found.suspects),
        "problem": found.problem or None,
        "runs": [
            {
                "name": trial.name,
                "title": found.titles[trial.name],
                "answer": trial.answer,
                "why": trial.why,
                "run": _path(trial.path),
            }
            for trial in found.trials
        ],
    }


def _path(path: object) -> str | None:
    return None if path is None else str(path)
