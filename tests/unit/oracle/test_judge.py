from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from histories import (
    KILL,
    STEPS,
    attempt,
    baseline,
    fired,
    killed_and_resumed,
    loss_of,
    name_of,
    row,
    run_of,
    said,
    scenario,
)

from harness.judge import judge
from harness.oracle.verdict import FiredFault
from harness.plan import write_plan
from harness.store import Baseline, Run, read_baseline, read_run


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_the_healthy_case_passes(format):
    verdict = judge(killed_and_resumed(format=format), baseline(format=format))
    assert verdict.findings == ()
    assert (verdict.outcome, verdict.kind, verdict.component) == ("PASS", None, "none")
    assert (verdict.max_loss_diff, verdict.resumed_from, verdict.lost_steps) == (0.0, (12,), (2,))
    assert verdict.fired == (FiredFault(KILL, 0, 1, 14),)
    assert (verdict.id, verdict.fault, verdict.replay) == ("case", KILL, "runs/case/plan.toml")
    assert (verdict.duration_s, verdict.same_world_size) == (3.0, True)


def test_lost_state_that_the_loss_feels_is_diverged_and_names_the_component():
    run = killed_and_resumed()
    said(run, 1, 1, "state", moment="load")["digests"]["rng.python"] = "51e0"
    row(run, 1, 1, 13)["loss"] = (loss_of(13, 1) + 1).hex()
    verdict = judge(run, baseline())
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", "diverged", "rng.python")
    assert [finding.kind for finding in verdict.findings] == ["diverged", "state-lost"]


def test_an_unstable_baseline_is_inconclusive_whatever_else_is_seen():
    run = killed_and_resumed()
    row(run, 1, 0, 13)["loss"] = "nan"
    run.attempts[1].supervisor.append({"event": "leftover", "processes": [[1, "x"]]})
    verdict = judge(run, Baseline(2, baseline().ranks, unstable="rank 0, batch at step 3"))
    assert (verdict.outcome, verdict.kind) == ("INCONCLUSIVE", "baseline-unstable")


def test_a_case_whose_fault_did_not_fire_never_passes(tmp_path):
    run = run_of(attempt(0, 1, STEPS, path=tmp_path, ended=True))
    verdict = judge(run, baseline())
    assert (verdict.outcome, verdict.kind) == ("INCONCLUSIVE", "fault-did-not-fire")
    assert verdict.resumed_from == ()


def test_an_undisturbed_job_without_a_fault_passes(tmp_path):
    run = run_of(attempt(0, 1, STEPS, path=tmp_path, ended=True), case=scenario(faults=()))
    verdict = judge(run, baseline())
    assert (verdict.outcome, verdict.fault, verdict.max_loss_diff) == ("PASS", "none", 0.0)


def test_a_silent_restart_from_scratch_is_found_although_the_curve_is_equal(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(KILL, step=14),))
    second = attempt(1, 1, STEPS, path=tmp_path, resumed=0, ended=True, before=(4, 8, 12))
    verdict = judge(run_of(first, second), baseline())
    assert (verdict.kind, verdict.component, verdict.max_loss_diff) == ("restarted-from-scratch", "checkpoint-files", 0.0)


def test_a_refusal_that_was_asked_for_passes(tmp_path):
    faults = ("sigkill all ranks at step 14", "truncate every to 50%")
    hits = tuple(
        {"event": "damaged", "fault": faults[1], "path": name_of(b), "checkpoint": name_of(b), "step": b, "unchanged": False}
        for b in (4, 8, 12)
    )
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(faults[0], 0, step=14),))
    how = {"path": tmp_path, "resumed": None, "before": (4, 8, 12), "supervisor": hits}
    exits = tuple({"event": "exited", "rank": rank, "code": 3, "signal": None, "kind": "exited"} for rank in (0, 1))
    second = attempt(1, 13, 12, exits=exits, **how)
    for rank, log in second.ranks.items():
        log.records.append({"event": "refuse", "rank": rank, "error": "x"})
    second.path.mkdir()
    (second.path / "rank-0.stderr").write_text(f"sha256 mismatch: {name_of(12)}: expected a, found b")
    verdict = judge(run_of(first, second, case=scenario(faults=faults, expect="refuses")), baseline())
    assert verdict.findings == ()
    assert verdict.resumed_from == ()


def test_an_oracle_that_crashes_is_never_hidden():
    def broken(run: Run, baseline: Baseline):
        raise KeyError("step")

    verdict = judge(killed_and_resumed(), baseline(), oracles=(broken,))
    assert (verdict.outcome, verdict.kind) == ("INCONCLUSIVE", "harness-error")
    assert verdict.findings[0].message == "the oracle broken crashed: KeyError: 'step'"
    assert verdict.findings[0].oracle == "broken"


def test_a_record_that_nobody_can_read_makes_no_traceback():
    run = killed_and_resumed()
    for record in run.attempts[0].of("committed"):
        del record["checkpoint"]
    verdict = judge(run, baseline())
    assert verdict.outcome == "INCONCLUSIVE"
    assert {finding.kind for finding in verdict.findings} == {"harness-error"}
    assert "facts" in {finding.oracle for finding in verdict.findings}


def test_a_fault_that_fires_at_every_call_is_told_once_a_step(tmp_path):
    fault = "EIO rank 0 on fsync *.tmp always"
    records = [fired(fault, 0, 1005.5), fired(fault, 0, 1005.6), fired("nonsense", -1)]
    run = run_of(
        attempt(0, 1, 6, path=tmp_path, supervisor=tuple(records)), case=scenario(faults=(fault, "nan rank 0 at batch 2"))
    )
    assert judge(run, baseline()).fired == (
        FiredFault("nan rank 0 at batch 2", None, None, None),
        FiredFault(fault, 0, 0, 5),
        FiredFault("nonsense", 0, None, None),
    )


def store(run: Run, golden: Baseline, path: Path) -> None:
    """Writes a case as a run directory."""
    path.mkdir()
    write_plan(run.plan, path / "plan.toml")
    folders = [(path / "golden", golden.ranks, [], [])]
    folders += [(path / f"attempt-{a.index:03d}", a.ranks, a.supervisor, a.operations) for a in run.attempts]
    for folder, ranks, supervisor, operations in folders:
        folder.mkdir()
        logs = {f"rank-{rank}": log.records for rank, log in ranks.items()}
        for name, records in {**logs, "attempt": supervisor, "operations": operations}.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "golden" / "baseline.json").write_text(json.dumps({"world_size": golden.world_size, "unstable": golden.unstable}))


def test_a_stored_case_gives_the_same_verdict(tmp_path):
    store(killed_and_resumed(), baseline(), tmp_path / "case")
    run = read_run(tmp_path / "case")
    verdict = judge(run, read_baseline(run.directory.golden))
    assert (verdict.outcome, verdict.max_loss_diff, verdict.lost_steps) == ("PASS", 0.0, (2,))


def test_a_truncated_last_log_line_is_never_a_pass(tmp_path):
    store(killed_and_resumed(), baseline(), tmp_path / "case")
    log = tmp_path / "case" / "attempt-000" / "rank-1.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    run = read_run(tmp_path / "case")
    verdict = judge(run, read_baseline(run.directory.golden))
    assert (verdict.outcome, verdict.kind) == ("INCONCLUSIVE", "not-comparable")


def test_judging_does_not_import_torch():
    program = "import sys, harness.judge, harness.report.text; print('torch' in sys.modules)"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
