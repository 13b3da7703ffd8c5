from __future__ import annotations

from histories import attempt, baseline, exited, killed_and_resumed, kinds, only, replace_exits, run_of

from harness.oracle.liveness import liveness


def test_ranks_that_end_in_time_pass():
    assert liveness(killed_and_resumed(), baseline()) == []


def test_a_hang_names_rank_last_event_and_how_long():
    run = killed_and_resumed()
    replace_exits(run, 0, exited(0, None, "SIGKILL", "hang", 1089.0), exited(1, None, "SIGKILL", "own-kill"))
    finding = only(liveness(run, baseline()), "hang")
    assert finding.message == (
        "rank 0 was still running at the deadline of 90 s in attempt 0; last event batch 14, 75.0 s before it was ended"
    )
    assert (finding.rank, finding.attempt, finding.step, finding.component) == (0, 0, 14, "process")


def test_a_rank_that_finished_but_did_not_exit_is_named_apart():
    run = killed_and_resumed()
    replace_exits(run, 1, exited(0), exited(1, None, "SIGKILL", "finished-but-did-not-exit", 2034.5))
    finding = only(liveness(run, baseline()), "hang")
    assert finding.message == (
        "rank 1 finished its work but did not exit in attempt 1; last event end 24, 10.0 s before it was ended"
    )


def test_a_launcher_that_hangs_is_described_by_its_latest_rank(tmp_path):
    run = run_of(attempt(0, 1, 14, path=tmp_path, exits=(exited(-1, None, "SIGKILL", "hang", 1100.0),)))
    finding = only(liveness(run, baseline()), "hang")
    assert finding.message.startswith("the launcher was still running")
    assert finding.rank is None


def test_a_rank_that_never_said_anything(tmp_path):
    run = run_of(attempt(0, 1, 14, path=tmp_path, exits=(exited(0, None, "SIGKILL", "hang"),)))
    del run.attempts[0].ranks[0]
    assert only(liveness(run, baseline()), "hang").message.endswith("last event none")


def test_a_hang_beside_a_foreign_death_is_not_blamed():
    run = killed_and_resumed()
    replace_exits(run, 1, exited(0, None, "SIGKILL", "hang"), exited(1, None, "SIGKILL", "foreign-death"))
    assert kinds(liveness(run, baseline())) == []
