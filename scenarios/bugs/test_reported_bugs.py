"""Bugs that others have reported, and that the library still has: each replay file fails, as it says itself.

Expected failures, as in `tests/process/test_findings.py`: one that passes one day makes its test fail, for the library has been
mended then, and the row in docs/findings.md needs the version. One that fails in another way fails here too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.case import run_case
from harness.plan import read_plan
from harness.replaying import shown_by
from harness.report.text import render

FOLDER = Path(__file__).parent / "findings"
FILES = sorted(FOLDER.glob("*.toml"))


class StillFailsError(Exception):
    """It fails exactly as it is written down."""


def case(file):
    # The first line of the file says what the library does, and where that was reported.
    reason = file.read_text().splitlines()[0].removeprefix("# ")
    return pytest.param(file, id=file.stem, marks=pytest.mark.xfail(strict=True, raises=StillFailsError, reason=reason))


@pytest.mark.parametrize("file", [case(file) for file in FILES])
def test_a_reported_bug_is_still_there(harness_workbench, file):
    plan = read_plan(file)
    verdict, directory = run_case(plan.scenario, harness_workbench)
    shutil.rmtree(directory.path)
    if shown_by(verdict, plan.expected) == "reproduced" and verdict.root is not None:
        raise StillFailsError(verdict.root.message)
    assert verdict.outcome == "PASS", render(verdict, directory.path)  # a failure, but another one than was written down


def test_every_file_says_what_it_shows_and_is_a_row_of_the_document():
    text = (FOLDER.parents[2] / "docs" / "findings.md").read_text()
    assert len(FILES) >= 3
    for file in FILES:
        assert read_plan(file).expected is not None, file
        assert f"`{file.name}`" in text
