from __future__ import annotations

from histories import (
    KILL,
    attempt,
    baseline,
    exited,
    fired,
    killed_and_resumed,
    kinds,
    only,
    replace_exits,
    row,
    run_of,
    scenario,
)

from harness.oracle.control import control
from harness.store import Baseline, read_rank_logs, read_records


def test_whole_records_pass():
    assert control(killed_and_resumed(), baseline()) == []


def test_a_baseline_that_differs_from_itself():
    golden = Baseline(2, baseline().ranks, unstable="rank 1, batch at step 3: loss is 0x1p+1 in one run, 0x1p+0 in the other")
    finding = only(control(killed_and_resumed(), golden), "baseline-unstable")
    assert finding.message.startswith("the uninterrupted run differs from itself: rank 1, batch at step 3")


def test_a_baseline_that_did_not_end_or_lacks_a_rank():
    golden = baseline()
    golden.ranks[0].records.pop()
    del golden.ranks[1]
    found = control(killed_and_resumed(), golden)
    assert kinds(found) == ["not-comparable", "not-comparable"]
    assert found[0].message == "the uninterrupted run did not end on rank 0"
    assert found[1].message == "the uninterrupted run has no log of rank 1"


def test_a_truncated_last_log_line_is_a_broken_log(tmp_path):
    (tmp_path / "rank-0.jsonl").write_text('{"event": "start", "rank": 0}\n{"event": "batch", "ba')
    run = killed_and_resumed()
    run.attempts[0].ranks[0] = read_rank_logs(tmp_path)[0]
    finding = only(control(run, baseline()), "not-comparable")
    assert "rank-0.jsonl line 2 is not JSON" in finding.message


def test_a_broken_log_of_the_supervisor_counts_too(tmp_path):
    (tmp_path / "attempt.jsonl").write_text("[]\n")
    run = killed_and_resumed()
    run.attempts[1].problems.extend(read_records(tmp_path / "attempt.jsonl")[1])
    assert "is no event record" in only(control(run, baseline()), "not-comparable").message


def test_a_malformed_batch_is_a_broken_log():
    run, golden = killed_and_resumed(), baseline()
    row(run, 1, 0, 20)["step"] = "twenty"
    del golden.ranks[1].of("batch")[3]["loss"]
    found = control(run, golden)
    assert kinds(found) == ["not-comparable", "not-comparable"]
    assert "of the uninterrupted run: rank 1: malformed batch record" in found[0].message


def test_many_problems_are_not_all_shown():
    run = killed_and_resumed()
    run.attempts[0].problems.extend(f"line {n}" for n in range(100))
    assert len(control(run, baseline())) == 5


def test_a_missing_rank_log():
    run = killed_and_resumed()
    del run.attempts[1].ranks[1]
    finding = only(control(run, baseline()), "not-comparable")
    assert finding.message == "rank 1 of attempt 1 has no event log (exit code 0)"


def test_a_rank_that_was_killed_before_its_first_line_needs_no_log():
    run = killed_and_resumed()
    del run.attempts[0].ranks[1]
    assert control(run, baseline()) == []


def test_a_rank_without_log_and_without_end():
    run = killed_and_resumed()
    del run.attempts[1].ranks[1]
    replace_exits(run, 1, exited(0))
    assert "(no recorded end)" in only(control(run, baseline()), "not-comparable").message
    replace_exits(run, 1, exited(-1))
    assert "(exit code 0)" in only(control(run, baseline()), "not-comparable").message


def test_attempts_that_were_never_launched_or_never_ended():
    assert only(control(run_of(), baseline()), "harness-error").message == "no attempt was recorded; expected at least one"
    run = killed_and_resumed()
    run.attempts[1].supervisor.pop()
    assert "was never ended: the harness stopped" in only(control(run, baseline()), "harness-error").message
    run.attempts[1].supervisor.clear()
    assert only(control(run, baseline()), "harness-error").message == "attempt 1 was never launched"


def test_a_first_launch_that_fails_by_itself_has_nothing_to_do_with_a_resume(tmp_path):
    run = run_of(attempt(0, 1, 3, path=tmp_path, exits=(exited(0, 1), exited(1, None, "SIGKILL", "peer-died"))))
    finding = only(control(run, baseline()), "not-comparable")
    assert finding.message == "attempt 0 failed before any fault had fired: rank 0 ended with exit code 1"


HOLD = "hold rank 0 before rename tmp until rank 1 rename tmp"


def test_a_launch_that_fails_by_an_order_of_its_ranks_is_a_failure(tmp_path):
    exits = (exited(0, 1), exited(1, None, "SIGKILL", "peer-died"))
    one = attempt(0, 1, 3, path=tmp_path, exits=exits, supervisor=(fired(HOLD, 0, path="tmp"),))
    finding = only(control(run_of(one, case=scenario((HOLD,))), baseline()), "job-failed")
    assert (finding.outcome, finding.component, finding.rank, finding.file) == ("FAIL", "process", 0, "tmp")
    assert f"in which nothing had happened but '{HOLD}'" in finding.message


def test_a_launch_to_which_something_else_was_done_has_a_reason_to_fail(tmp_path):
    supervisor = (fired(HOLD, 0), fired(KILL))
    one = attempt(0, 1, 3, path=tmp_path, exits=(exited(0, 1), exited(1, 1)), supervisor=supervisor)
    assert control(run_of(one, case=scenario((HOLD, KILL))), baseline()) == []


def test_writes_that_escaped_the_gate_make_a_case_inconclusive():
    run = killed_and_resumed()
    run.attempts[0].supervisor.append({"event": "escaped", "what": "rank 0: /x/a was copied to descriptor 77"})
    assert "unseen writes in attempt 0: rank 0: /x/a was copied" in only(control(run, baseline()), "not-comparable").message


def test_a_first_launch_that_fails_where_a_plainer_job_did_not_is_a_failure(tmp_path):
    case = scenario(faults=(), compare_with="plain")
    one = attempt(0, 1, 3, path=tmp_path, exits=(exited(0, 1), exited(1, 1)))
    one.ranks[0].records.append({"event": "failed", "rank": 0, "error": "activations do not fit"})
    finding = only(control(run_of(one, case=case), baseline()), "job-failed")
    assert (finding.outcome, finding.component, finding.rank) == ("FAIL", "process", 0)
    assert finding.message.endswith("activations do not fit")


def test_a_probe_that_failed_has_not_seen_everything():
    run = killed_and_resumed()
    run.attempts[0].ranks[0].records.append({"event": "probe-failed", "rank": 0, "where": "step", "error": "KeyError: 'lr'"})
    finding = only(control(run, baseline()), "not-comparable")
    assert (finding.outcome, finding.rank) == ("INCONCLUSIVE", 0)
    assert "KeyError: 'lr'" in finding.message
