"""What docs/findings.md says of other trainers still holds: each replay file fails, as it is written there.

Expected failures, as in `tests/process/test_findings.py`: one that passes one day makes its test fail, and so does one that fails
in another way.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lines import StillFailsError

from harness.case import run_case
from harness.plan import read_plan
from harness.report.text import render

FOLDER = Path(__file__).parent / "findings"
FINDINGS = {
    "hf-half-written-checkpoint": ("resume-crashed", "process"),
    "hf-save-only-model": ("diverged", "optimizer"),
    "accelerate-half-written-state": ("resume-crashed", "process"),
    "accelerate-order-drawn-anew": ("diverged", "rng.torch"),
    "lightning-epoch-begins-again": ("data-repeated", "data"),
    "lightning-stateful-trains-nothing": ("silent-exit", "process"),
    "dcp-mix-of-two-saves": ("diverged", "optimizer"),
}


def case(name):
    # The first line of the file says what the library does.
    reason = (FOLDER / f"{name}.toml").read_text().splitlines()[0].removeprefix("# ")
    return pytest.param(name, marks=pytest.mark.xfail(strict=True, raises=StillFailsError, reason=reason))


@pytest.mark.parametrize("name", [case(name) for name in FINDINGS])
def test_a_finding_still_holds(harness_workbench, name):
    verdict, directory = run_case(read_plan(FOLDER / f"{name}.toml").scenario, harness_workbench)
    shutil.rmtree(directory.path)
    if (verdict.kind, verdict.component) == FINDINGS[name] and verdict.root is not None:
        raise StillFailsError(verdict.root.message)
    assert verdict.outcome == "PASS", render(verdict, directory.path)


def test_every_replay_file_is_expected_to_fail():
    assert {file.stem for file in FOLDER.glob("*.toml")} == set(FINDINGS)
