from __future__ import annotations

from histories import STEPS, attempt, baseline, killed_and_resumed, only, run_of, scenario

from harness.judge import judge
from harness.oracle.execution import execution

TAMPER = "tamper newest with hostile-pickle"
EXECUTED = {"event": "executed", "path": "executed-by-load"}


def damaged(path, fault=TAMPER):
    return {"event": "damaged", "fault": fault, "path": path, "checkpoint": path.split("/")[0], "step": 12, "unchanged": False}


def resumed(tmp_path, *records, batch=8):
    second = attempt(1, batch + 1, STEPS, resumed=batch, ended=True, before=(4, 8, 12), path=tmp_path, supervisor=records)
    return run_of(attempt(0, 1, 14, path=tmp_path), second, case=scenario(faults=(TAMPER,)))


def test_without_a_marker_nothing_was_run(tmp_path):
    assert execution(killed_and_resumed(), baseline()) == []
    assert execution(resumed(tmp_path, damaged("step-00000012.pt")), baseline()) == []


def test_the_marker_is_code_executed_and_names_the_file_that_held_it(tmp_path):
    run = resumed(tmp_path, damaged("step-00000012/rank1.bin"), damaged("step-00000012/manifest.json"), EXECUTED)
    finding = only(execution(run, baseline()), "code-executed")
    assert finding.message == "code from step-00000012/rank1.bin was run in attempt 1: it made executed-by-load"
    assert (finding.file, finding.component, finding.attempt) == ("step-00000012/rank1.bin", "checkpoint-files", 1)


def test_only_the_first_attempt_that_ran_it_is_named(tmp_path):
    run = resumed(tmp_path, damaged("step-00000012.pt"), EXECUTED)
    third = attempt(2, 21, STEPS, resumed=20, ended=True, path=tmp_path, supervisor=(EXECUTED,))
    run = run_of(*run.attempts, third)
    assert only(execution(run, baseline()), "code-executed").attempt == 1


def test_a_marker_that_no_fault_explains_is_told_all_the_same(tmp_path):
    run = resumed(tmp_path, damaged("step-00000012.pt", "flip newest at 50%"), EXECUTED)
    finding = only(execution(run, baseline()), "code-executed")
    assert (finding.file, finding.message) == (None, "code from a checkpoint was run in attempt 1: it made executed-by-load")


def test_it_is_the_verdict_also_where_the_tampered_checkpoint_was_loaded(tmp_path):
    run = resumed(tmp_path, damaged("step-00000012.pt"), EXECUTED, batch=12)
    verdict = judge(run, baseline())
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", "code-executed", "checkpoint-files")
    assert "corrupt-accepted" in {finding.kind for finding in verdict.findings}
