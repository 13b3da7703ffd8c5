"""Bugs that no single fault shows are found, and made as small as they can be; `scripts/double-faults` has all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "double_faults"))

from known import BUGS, hunt, job

from harness.case import run_case
from harness.scenario import Scenario
from harness.shrink.reduce import without

BUDGET_S, JOBS = 900.0, 4


def test_a_bug_is_found_and_made_as_small_as_it_can_be(harness_workbench, tmp_path):
    bug = BUGS["warm-up-again"]
    found = hunt(job(bug.name), 1, tmp_path / "night", harness_workbench, BUDGET_S, JOBS)
    ((group, smaller),) = found.smaller.items()
    assert smaller.complete
    assert bug.is_smallest(group, smaller.scenario.faults)


SMALLEST = [(bug.name, group, faults) for bug in BUGS.values() for group, known in bug.shows.items() for faults in known]


@pytest.mark.parametrize(("name", "group", "faults"), SMALLEST)
def test_no_part_of_a_smallest_schedule_shows_the_bug_and_all_of_it_does(harness_workbench, name, group, faults):
    whole = job(name).model_copy(update={"faults": faults, "max_attempts": 4})
    verdict, _ = run_case(whole, harness_workbench)
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", *group)
    for index in range(len(faults)):
        part = Scenario.build({**whole.model_dump(), **without(whole, {index})})
        verdict, _ = run_case(part, harness_workbench)
        assert verdict.outcome != "FAIL", (part.faults, verdict.root)
