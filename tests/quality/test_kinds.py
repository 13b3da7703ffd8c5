"""The judge is judged on what people report: every planted kind is found and named, every healthy trainer beside it is green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.case import run_case
from harness.kinds import read_kinds
from harness.report.text import render

CASES = read_kinds(Path(__file__).parent / "kinds")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_what_is_planted_is_named_and_what_is_healthy_is_green(harness_workbench, case):
    verdict, directory = run_case(case.scenario, replace(harness_workbench, golden_launch="warm"))
    said = render(verdict, directory.path)
    if case.expect:
        assert case.named(verdict), said
    else:
        assert verdict.outcome == "PASS", said
