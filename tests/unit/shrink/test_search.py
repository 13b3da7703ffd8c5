"""What a search reads off the run that fails."""

from __future__ import annotations

from pathlib import Path

from harness.plan import make_plan
from harness.scenario import Scenario
from harness.shrink.reduce import candidates
from harness.shrink.search import full_disks
from harness.store import AttemptRun, Run, RunDirectory

QUOTA = "quota 20000 bytes attempt 1"
FAULTS = ("sigkill all ranks at step 4 by rank 0", QUOTA)


def run_with(*fired):
    workload = {"kind": "command", "command": ("true", "{ckpt}")}
    scenario = Scenario.build({"workload": workload, "faults": FAULTS, "max_attempts": 4})
    paths = [("open", "tmp/part-1.json"), ("write", "tmp/part-1.json"), ("write", "log"), ("write", "tmp/part-2.json")]
    done = [
        {"event": "operation", "rank": 0, "operation": operation, "path": path, "to": None, "n": number}
        for number, (operation, path) in enumerate([*paths, ("write", "tmp/part-3.json")], 1)
    ]
    attempts = [AttemptRun(index, Path(f"attempt-00{index}"), {}, list(fired) if index else [], done, []) for index in (0, 1)]
    return Run(RunDirectory(Path("case")), make_plan(scenario), attempts)


def fired(fault, n=4):
    facts = {"rank": 0, "operation": "write", "call": "write", "path": "tmp/part-2.json", "n": n}
    return {"event": "fired", "time_s": 1.0, "fault": fault, "attempt": 1, **facts}


def test_a_kill_where_the_disk_was_full_is_simpler_than_a_full_disk():
    run = run_with(fired(QUOTA))
    (kill,) = full_disks(run).values()
    assert str(kill) == "sigkill all ranks before write tmp/part-*.json occurrence 2 by rank 0 attempt 1"
    found = [simpler.faults for _, simpler in candidates(run.plan.scenario, 12, full_disks(run))]
    assert (FAULTS[0], str(kill)) in found
    assert found.index((FAULTS[0], str(kill))) < 5


def test_another_fault_and_a_disk_that_was_never_full_say_nothing():
    assert full_disks(run_with(fired("EIO rank 0 on write * attempt 1"))) == {}
    assert full_disks(run_with()) == {}
