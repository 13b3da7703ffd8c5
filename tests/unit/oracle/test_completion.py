from __future__ import annotations

import pytest
from histories import (
    KILL,
    STEPS,
    attempt,
    baseline,
    exited,
    files_of,
    fired,
    killed_and_resumed,
    kinds,
    name_of,
    only,
    record,
    replace_exits,
    run_of,
    said,
    scenario,
)

from harness.judge import judge
from harness.oracle.completion import completion
from harness.store import Baseline

RANK_1_FAILS = (exited(0, None, "SIGKILL", "peer-died", 2016.0), exited(1, 1, time_s=2015.0))


def crashed(tmp_path, exits=RANK_1_FAILS, **how):
    how = {"first": 13, "last": 14, "resumed": 12, "before": (4, 8, 12), "exits": exits, **how}
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(KILL),))
    second = attempt(1, how.pop("first"), how.pop("last"), path=tmp_path, **how)
    return run_of(first, second)


def test_a_job_that_gets_done_passes():
    assert completion(killed_and_resumed(), baseline()) == []


def test_a_case_that_is_to_refuse_is_not_judged_here():
    run = killed_and_resumed(expect="refuses")
    run.attempts[1].ranks[0].records.pop()
    assert completion(run, baseline()) == []


def test_exit_code_0_without_an_end_is_a_silent_exit():
    run = killed_and_resumed()
    for log in run.attempts[1].ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "end"]
    found = completion(run, baseline())
    assert kinds(found) == ["silent-exit", "silent-exit"]
    assert found[1].message == "rank 1 left with exit code 0 after batch 24 of attempt 1, without having ended"


def test_a_silent_exit_of_an_early_attempt_counts_as_well():
    run = killed_and_resumed()
    replace_exits(run, 0, exited(0, 0), exited(1, None, "SIGKILL", "own-kill"))
    finding = only(completion(run, baseline()), "silent-exit")
    assert (finding.attempt, finding.rank, finding.step) == (0, 0, 14)


def test_a_launcher_speaks_for_its_ranks():
    run = killed_and_resumed()
    replace_exits(run, 1, exited(-1, 0))
    assert completion(run, baseline()) == []
    run.attempts[1].ranks[1].records.pop()
    assert only(completion(run, baseline()), "silent-exit").rank == 1


def test_too_few_batches_are_a_silent_exit_and_another_step_a_divergence():
    run = killed_and_resumed()
    said(run, 1, 0, "end")["batches"] = 20
    said(run, 1, 1, "end")["step"] = 23
    found = completion(run, baseline())
    assert kinds(found) == ["silent-exit", "diverged"]
    assert found[0].message == "rank 0 ended after 20 batches; 24 were planned"
    assert found[1].message == "rank 1 ended at step 23, the uninterrupted run at step 24"
    said(run, 1, 0, "end")["batches"] = 25
    assert kinds(completion(run, baseline())) == ["diverged", "diverged"]
    unstable = Baseline(2, baseline().ranks, unstable="rank 0")
    said(run, 1, 0, "end")["batches"] = 24
    assert completion(run, unstable) == []


def test_a_restart_that_fails_by_itself_is_quoted(tmp_path):
    run = crashed(tmp_path)
    run.attempts[1].path.mkdir()
    (run.attempts[1].path / "rank-1.stderr").write_text("Traceback\n  one\n\n  two\nRuntimeError: size mismatch\n")
    finding = only(completion(run, baseline()), "resume-crashed")
    assert finding.message == (
        "rank 1 ended with exit code 1 in attempt 1, though no fault had fired in it: one | two | RuntimeError: size mismatch"
    )
    assert (finding.rank, finding.attempt, finding.component) == (1, 1, "process")


def test_a_crash_by_signal_and_what_the_log_says_where_stderr_is_silent(tmp_path):
    run = crashed(tmp_path, exits=(exited(0, None, "SIGSEGV", "crashed"), exited(1, None, "SIGKILL", "peer-died")))
    run.attempts[1].ranks[0].records.append({"event": "failed", "rank": 0, "error": "CheckpointError: bad"})
    message = only(completion(run, baseline()), "resume-crashed").message
    assert message.startswith("rank 0 ended with SIGSEGV (crashed) in attempt 1")
    assert message.endswith(": CheckpointError: bad")


def test_of_two_failures_the_first_is_named_and_one_that_refused_before_it(tmp_path):
    run = crashed(tmp_path, exits=(exited(0, 1, time_s=5.0), exited(1, 3, time_s=9.0)))
    assert only(completion(run, baseline()), "resume-crashed").rank == 0
    run.attempts[1].ranks[1].records.append({"event": "refuse", "rank": 1, "error": "nothing valid"})
    assert only(completion(run, baseline()), "bad-refusal").rank == 1


def test_a_failed_launcher_is_named_with_the_rank_that_spoke(tmp_path):
    run = crashed(tmp_path, exits=(exited(-1, 1),))
    run.attempts[1].ranks[1].records.append({"event": "failed", "rank": 1, "error": "x"})
    finding = only(completion(run, baseline()), "resume-crashed")
    assert finding.message.startswith("the launcher ended with exit code 1")
    assert finding.rank == 1


@pytest.mark.parametrize(
    "excuse",
    [fired("EIO rank 0 on write *.tmp attempt 1"), exited(0, None, "SIGKILL", "foreign-death")],
    ids=lambda r: r["event"],
)
def test_a_restart_that_was_disturbed_is_not_blamed(tmp_path, excuse):
    run = crashed(tmp_path, exits=(exited(0, 1), exited(1, 1)))
    run.attempts[1].supervisor.append(excuse)
    run.attempts.append(attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True))
    assert completion(run, baseline()) == []


def test_damage_before_a_restart_is_no_excuse_for_a_crash(tmp_path):
    run = crashed(tmp_path)
    run.attempts[1].supervisor.append(fired("truncate newest to 50%", rank=-1))
    only(completion(run, baseline()), "resume-crashed")


def test_a_crash_because_the_last_good_checkpoint_is_gone(tmp_path):
    run = crashed(tmp_path, before=(4, 8))
    finding = only(completion(run, baseline()), "last-good-lost")
    assert finding.file == name_of(12)
    assert finding.message.startswith(
        "step-00000012.pt was committed in attempt 0, but step-00000012.pt is no longer what it was then; "
        "rank 1 ended with exit code 1"
    )


def test_a_checkpoint_that_the_harness_damaged_is_not_the_trainers_loss(tmp_path):
    run = crashed(tmp_path, before=(4, 8))
    hit = {"event": "damaged", "fault": "delete newest", "path": name_of(12), "checkpoint": name_of(12), "unchanged": False}
    run.attempts[1].supervisor.append(hit)
    only(completion(run, baseline()), "resume-crashed")


def test_a_checkpoint_that_was_visible_but_never_complete_is_lost_where_the_trainer_refuses_it_by_name(tmp_path):
    how = {"path": tmp_path, "format": "sharded"}
    first = attempt(0, 1, 3, supervisor=(fired(KILL),), **how)
    target = "step-00000004/manifest.json"
    first.operations.append({"event": "operation", "operation": "rename", "rank": 0, "path": "x", "to": target, "tampered": None})
    record(run_of(first), 0, "files", moment="end")["files"].update(files_of(4, "sharded"))
    second = attempt(1, 4, 3, resumed=None, exits=(exited(0, 3), exited(1, 3)), **how)
    run = run_of(first, second, case=scenario(format="sharded"))
    only(completion(run, baseline()), "resume-crashed")
    error = "no valid checkpoint: shard file missing: /x/step-00000004/rank1.bin: expected 1004 bytes, found no file"
    second.ranks[0].records.append({"event": "refuse", "rank": 0, "error": error})
    finding = only(completion(run, baseline()), "last-good-lost")
    assert "step-00000004 was committed in attempt 0, but is not complete" in finding.message


def test_attempts_used_up_without_completion(tmp_path):
    run = crashed(tmp_path, exits=(exited(0, None, "SIGKILL", "peer-died"), exited(1, None, "SIGKILL", "peer-died")))
    finding = only(completion(run, baseline()), "resume-crashed")
    assert "was the last one, and the job was not done" in finding.message


def test_a_fault_in_the_last_attempt_proves_nothing(tmp_path):
    run = run_of(attempt(0, 1, 14, path=tmp_path, supervisor=(fired(KILL),)))
    assert "expected a later attempt without one" in only(completion(run, baseline()), "not-comparable").message


def test_a_single_attempt_that_was_ended_without_cause_is_not_comparable(tmp_path):
    run = run_of(attempt(0, 1, 14, path=tmp_path))
    only(completion(run, baseline()), "not-comparable")


@pytest.mark.parametrize("kind", ["hang", "finished-but-did-not-exit", "foreign-death"])
def test_what_other_oracles_speak_of_is_left_to_them(tmp_path, kind):
    run = crashed(tmp_path, exits=(exited(0, None, "SIGKILL", kind), exited(1, None, "SIGKILL", "peer-died")))
    assert completion(run, baseline()) == []


def test_no_attempt_is_left_to_the_control():
    assert completion(run_of(), baseline()) == []


def test_a_restart_that_declines_what_was_left_alone_is_a_bad_refusal(tmp_path):
    run = crashed(tmp_path)
    run.attempts[1].ranks[1].records.append({"event": "refuse", "rank": 1, "error": "unknown schema: x.pt: expected a, found b"})
    finding = only(completion(run, baseline()), "bad-refusal")
    assert finding.component == "checkpoint-files"
    assert finding.message.endswith("it declined to resume: unknown schema: x.pt: expected a, found b")


@pytest.mark.parametrize("exits", [(exited(0, 0), exited(1, 0)), (exited(-1, 0),)], ids=["ranks", "launcher"])
def test_a_log_that_is_missing_though_all_left_well_is_no_crash(exits):
    run = killed_and_resumed()
    replace_exits(run, 1, *exits)
    del run.attempts[1].ranks[1]
    assert completion(run, baseline()) == []
    verdict = judge(run, baseline())
    assert (verdict.outcome, verdict.kind) == ("INCONCLUSIVE", "not-comparable")
