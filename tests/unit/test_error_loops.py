"""What the loop over errors says of its runs; the runs themselves are played, so that the loop's end can be chosen."""

from __future__ import annotations

import pytest

from harness import error_loop as module
from harness.case import Workbench
from harness.error_loop import error_loop, find_error_causes
from harness.oracle.finding import fail, inconclusive
from harness.oracle.verdict import Verdict, decide
from harness.plan import make_plan
from harness.scenario import job
from harness.store import RecordWriter, RunDirectory

UNFIRED = inconclusive("fault-did-not-fire", "fired", "it did not fire")


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Plays a job whose rank does these operations; `found` says what is wrong where one of them fails."""

    def start(paths, found=(), end=(UNFIRED,), **options):
        asked = []

        def run_case(scenario, bench):
            fault = scenario.faults[-1]
            occurrence = int(fault.split("occurrence ")[1].split()[0]) if "occurrence" in fault else 1
            asked.append(fault)
            directory = RunDirectory.create(bench.runs / scenario.name, make_plan(scenario))
            folder = directory.attempt(options.get("attempt", 0))
            folder.mkdir()
            log = RecordWriter(folder / "attempt.jsonl")
            findings = end
            if occurrence <= len(paths):
                log.write("fired", fault=fault, rank=0, operation="write", call="writev", path=paths[occurrence - 1])
                findings = dict(found).get(occurrence, ())
            log.close()
            outcome, ordered, component = decide(findings)
            return Verdict(scenario.name, fault, outcome, ordered, component, replay=str(directory.plan_file)), directory

        monkeypatch.setattr(module, "run_case", run_case)
        bench = Workbench(tmp_path / "runs", tmp_path / "baselines", None)
        return error_loop(job(name="j"), bench, tmp_path / "runs", "ENOSPC", "write", **options), asked

    return start


def left(tmp_path):
    return sorted(path.name for path in (tmp_path / "runs").iterdir())


def test_every_operation_fails_once_and_the_end_is_found_without_a_guess(play, tmp_path):
    result, asked = play(["a", "b", "c"])
    assert (result.outcome, result.num_operations, result.inconclusive) == ("PASS", 3, "")
    assert asked[:2] == ["ENOSPC rank 0 on write **", "ENOSPC rank 0 on write ** occurrence 2"]
    assert len(asked) == 4
    assert left(tmp_path) == []
    assert result.describe().startswith("PASS: ENOSPC on write by rank 0: 3 operations, each failed once, in ")


def test_failures_are_grouped_by_operation_and_file_and_the_first_is_kept(play, tmp_path):
    hang, lost = fail("hang", "liveness", "it hangs", component="process"), fail("last-good-lost", "retention", "gone")
    paths = ["step-00000001/rank0.bin.tmp", "step-00000002/rank0.bin.tmp", "step-00000002.pt.12-0a1b2c3d.tmp", "."]
    result, _ = play(paths, {1: (hang,), 2: (hang,), 3: (lost,)})
    assert [(cause.kind, cause.text, cause.num_cases) for cause in result.causes] == [
        ("hang", "ENOSPC on write (writev) step-*/rank*.bin.tmp", 2),
        ("last-good-lost", "ENOSPC on write (writev) step-*.pt.*.tmp", 1),
    ]
    assert (result.outcome, result.num_operations) == ("FAIL", 4)
    assert [path.name for path in sorted((tmp_path / "runs").iterdir())] == [
        result.causes[0].first.directory.name,
        result.causes[1].first.directory.name,
    ]
    assert "hang of process: ENOSPC on write (writev) step-*/rank*.bin.tmp (2 of 4 runs)" in result.describe()


def test_a_limit_is_no_verdict(play):
    result, asked = play(["a"] * 9, limit=5)
    assert (result.outcome, len(asked)) == ("INCONCLUSIVE", 5)
    assert "after 5 runs the fault still fired; expected a run without ENOSPC on write by rank 0" in result.inconclusive


def test_a_job_without_such_operations_shows_nothing(play):
    result, _ = play([])
    assert (result.outcome, result.num_operations) == ("INCONCLUSIVE", 0)
    assert "never came; expected one at least" in result.inconclusive


def test_a_job_that_fails_without_the_fault_is_no_end(play):
    result, _ = play(["a"], end=(UNFIRED, fail("hang", "liveness", "it hangs")))
    assert result.outcome == "INCONCLUSIVE"
    assert "is no plain one: it hangs" in result.inconclusive


def test_a_run_that_nobody_could_judge_is_said_and_kept(play, tmp_path):
    result, _ = play(["a", "b"], {2: (inconclusive("out-of-time", "control", "too late"),)})
    assert result.outcome == "INCONCLUSIVE"
    assert "undecided: occurrence 2: too late" in result.describe()
    assert len(left(tmp_path)) == 1


def test_errors_of_a_restart_are_looped_over_too(play):
    result, asked = play(["a"], attempt=1)
    assert asked[-1] == "ENOSPC rank 0 on write ** occurrence 2 attempt 1"
    assert (result.outcome, result.what) == ("PASS", "ENOSPC on write by rank 0 in attempt 1")


def test_nothing_that_fails_has_no_cause():
    assert find_error_causes([], "EIO on fsync") == []


def test_a_budget_ends_the_loop_and_is_no_verdict(play, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    result, asked = play(["a"] * 9, budget_s=25.0)
    assert (result.outcome, len(asked)) == ("INCONCLUSIVE", 3)
    assert result.inconclusive == "the budget of 25 s ended after 3 runs, and the fault still fired: give more time for the rest"
    ended, _ = play(["a"], budget_s=0.0, end=(UNFIRED,))
    assert ended.outcome == "INCONCLUSIVE"


def test_a_loop_that_is_done_within_its_budget_is_judged(play):
    result, asked = play(["a", "b"], budget_s=1e6)
    assert (result.outcome, result.inconclusive, len(asked)) == ("PASS", "", 3)
