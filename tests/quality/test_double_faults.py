"""Bugs that no single fault shows are found, and made as small as they can be; `scripts/double-faults` has all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "double_faults"))

from known import BUGS, hunt, job

from harness.case import run_case

BUDGET_S, JOBS = 240.0, 4


@pytest.mark.parametrize("name", ["warm-up-again"])
def test_a_bug_is_found_and_made_as_small_as_it_can_be(harness_workbench, tmp_path, name):
    bug = BUGS[name]
    found = hunt(job(name), 1, tmp_path / "night", harness_workbench, BUDGET_S, JOBS)
    smaller = found.smaller[bug.kind, bug.component]
    assert smaller.complete
    assert len(smaller.scenario.faults) == len(bug.smallest)
    assert all(map(re.fullmatch, bug.smallest, smaller.scenario.faults)), smaller.scenario.faults


@pytest.mark.parametrize("fault", ["sigkill all ranks at step 4 by rank 0", "sigkill all ranks at step 7 by rank 0"])
def test_one_of_its_faults_alone_shows_nothing(harness_workbench, fault):
    scenario = job("warm-up-again").model_copy(update={"faults": (fault,)})
    assert run_case(scenario, harness_workbench)[0].outcome == "PASS"
