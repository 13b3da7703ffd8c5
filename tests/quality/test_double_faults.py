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
from harness.shrink.strace import strace_lines
from harness.store import read_run

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


def test_kills_before_a_system_call_are_said_as_lines_of_strace(harness_workbench):
    """The lines were run by hand as well: exit codes 137 and 137, and then the third one ends in the bug's own error."""
    faults = BUGS["lock-left"].shows["resume-crashed", "process"][0]
    whole = job("lock-left").model_copy(update={"faults": faults, "max_attempts": 4})
    one, other = (read_run(run_case(whole, harness_workbench)[1].path) for _ in range(2))
    killed = "strace -f -o /dev/null -P CKPT/next.tmp -e trace=fsync -e inject=fsync:signal=SIGKILL:when=1"
    started = "python -S trainer.py CKPT lock-left"
    lines, why = strace_lines(one, other)
    assert [line for line in lines if not line.startswith("#")] == [f"{killed} {started}", f"{killed} {started}", started]
    assert why == ""
    assert strace_lines(one, None) == ([], f"'{faults[0]}': there was no time for the second run that shows it")


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (("sigkill all ranks at step 4 by rank 0",), "it does not come at a system call"),
        (("sigkill all ranks after fsync next.tmp by rank 0",), "strace injects before a call, once"),
        (("sigkill all ranks before fsync . by rank 0",), "strace cannot tell this fsync by its path"),
        (("sigkill all ranks at step 4 by rank 0", "truncate newest to byte 0"), "no bad batches, full disks or damaged files"),
    ],
)
def test_why_a_case_cannot_be_said_so(harness_workbench, faults, why):
    run = read_run(run_case(job().model_copy(update={"faults": faults}), harness_workbench)[1].path)
    lines, said = strace_lines(run, run)
    assert lines == []
    assert why in said
