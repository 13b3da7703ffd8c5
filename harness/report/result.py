"""Results as JSON (`harness.result/1`), for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness import __version__
from harness.oracle.verdict import Verdict
from harness.scenario import Scenario
from harness.store import Baseline

SCHEMA = "harness.result/1"


def result(command: Sequence[str], scenario: Scenario, baseline: Baseline, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The document.

    Args:
        command: the command line that was given.
        scenario: what was run.
        baseline: its uninterrupted run.
        verdicts: one per case.
    """
    cases = [verdict.to_json() for verdict in verdicts]
    total_s = sum(case["duration_s"] or 0.0 for case in cases)
    counts = {key: sum(case["verdict"] == key.upper() for case in cases) for key in ("pass", "fail", "inconclusive")}
    return {
        "schema": SCHEMA,
        "harness": __version__,
        "command": list(command),
        "seed": scenario.seed,
        "baseline": {
            "steps": len(baseline.ranks[0].batches) if 0 in baseline.ranks else 0,
            "deterministic": not baseline.unstable,
        },
        "summary": {**counts, "cases_per_min": 60 * len(cases) / total_s if total_s else None},
        "cases": cases,
    }


def to_text(document: dict[str, Any]) -> str:
    """The document as strict JSON (no bare NaN, which only Python reads)."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
