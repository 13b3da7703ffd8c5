from __future__ import annotations

import pytest
from histories import STEPS, attempt, baseline, digest, killed_and_resumed, kinds, only, run_of, said, scenario

from harness.oracle.state import state


def test_equal_digests_pass():
    assert state(killed_and_resumed(), baseline()) == []


def test_a_component_that_is_not_restored_is_named_with_both_digests():
    run = killed_and_resumed()
    said(run, 1, 1, "state", moment="load")["digests"]["rng.python"] = "51e0" + "0" * 60
    finding = only(state(run, baseline()), "state-lost")
    assert (finding.component, finding.rank, finding.step, finding.attempt) == ("rng.python", 1, 12, 1)
    assert finding.expected == digest("rng.python", 1, 12)
    assert finding.found == "51e0" + "0" * 60
    assert finding.message == (
        "rng.python of rank 1 after the load of step-00000012.pt (attempt 1) is not what it was before the save"
    )


def test_several_components_come_in_the_order_of_the_vocabulary():
    run = killed_and_resumed()
    for rank in (0, 1):
        said(run, 1, rank, "state", moment="load")["digests"].update(data="x", optimizer="y")
    assert [(f.component, f.rank) for f in state(run, baseline())] == [
        ("optimizer", 0),
        ("optimizer", 1),
        ("data", 0),
        ("data", 1),
    ]


def test_a_component_that_is_not_there_after_the_load():
    run = killed_and_resumed()
    del said(run, 1, 0, "state", moment="load")["digests"]["scheduler"]
    assert only(state(run, baseline()), "state-lost").found == "absent"


def test_a_load_that_equals_the_save_but_not_the_uninterrupted_run():
    run = killed_and_resumed()
    for index, moment in ((0, "save"), (1, "load")):
        said(run, index, 0, "state", moment=moment, step=12)["digests"]["buffers"] = "other"
    finding = only(state(run, baseline()), "state-lost")
    assert finding.message.endswith("is not what it was in the uninterrupted run")


def test_the_save_is_that_of_the_attempt_that_wrote_the_checkpoint(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 9, 14, path=tmp_path, resumed=8)
    third = attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True)
    run = run_of(first, second, third)
    for index, moment in ((1, "save"), (2, "load")):
        said(run, index, 0, "state", moment=moment, step=12)["digests"]["model"] = "of attempt 1"
    drifted, loaded = state(run, baseline())
    assert (drifted.attempt, drifted.component) == (1, "model")  # its save at batch 12 is not the uninterrupted run's
    assert (loaded.attempt, loaded.expected) == (2, digest("model", 0, 12))  # of the load only the baseline's differs


def test_two_saves_at_the_same_step_are_told_apart_by_name(tmp_path):
    skips = dict.fromkeys(range(9, 13), "non_finite_grad")  # so the saves after 8 and 12 are both at step 8
    how = {"path": tmp_path, "skips": skips}
    run = run_of(attempt(0, 1, 14, **how), attempt(1, 13, STEPS, resumed=12, ended=True, **how))
    assert state(run, baseline(skips=skips)) == []


def test_another_world_size_is_silent(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 13, STEPS, path=tmp_path, ranks=1, resumed=12, ended=True)
    run = run_of(first, second, case=scenario(ranks=(2, 1)))
    said(run, 1, 0, "state", moment="load")["digests"]["model"] = "other"
    assert state(run, baseline()) == []


def test_a_rank_that_logs_no_state_after_its_load_is_not_comparable():
    run = killed_and_resumed()
    log = run.attempts[1].ranks[1]
    log.records.remove(said(run, 1, 1, "state", moment="load"))
    assert only(state(run, baseline()), "not-comparable").rank == 1
    # Killed between its load and its first batch, it has nothing to answer for.
    log.records[:] = [r for r in log.records if r["event"] in ("start", "resume")]
    log.__dict__.pop("batches")
    assert state(run, baseline()) == []


def test_an_unstable_baseline_leaves_the_comparison_of_save_and_load():
    run, golden = killed_and_resumed(), baseline()
    golden = type(golden)(2, golden.ranks, unstable="rank 0")
    said(run, 0, 0, "state", moment="save", step=12)["digests"]["model"] = "x"
    said(run, 1, 0, "state", moment="load")["digests"]["model"] = "x"
    assert state(run, golden) == []
    said(run, 1, 0, "state", moment="load")["digests"]["model"] = "y"
    assert kinds(state(run, golden)) == ["state-lost"]


def test_a_fresh_start_has_nothing_to_compare(tmp_path):
    run = run_of(attempt(0, 1, 3, path=tmp_path), attempt(1, 1, STEPS, path=tmp_path, ended=True))
    assert state(run, baseline()) == []


@pytest.mark.parametrize(("moment", "where"), [("save", "before the save of batch 20"), ("end", "at the end, after batch 24,")])
def test_what_goes_wrong_after_a_good_load_is_found_at_the_next_save_or_at_the_end(moment, where):
    run = killed_and_resumed()
    wrong = said(run, 1, 1, "state", moment=moment, **({"step": 20} if moment == "save" else {}))
    wrong["digests"] |= {"model": "x", "optimizer": "x", "scheduler": "x"}
    finding = only(state(run, baseline()), "state-lost")
    # The scheduler is the cause, the others follow from it.
    assert (finding.component, finding.rank, finding.attempt) == ("scheduler", 1, 1)
    assert where in finding.message
    assert "(nor are model, optimizer)" in finding.message


def test_a_plainer_job_has_other_digests_and_is_not_compared():
    run = killed_and_resumed(compare_with="plain")
    said(run, 1, 1, "state", moment="end")["digests"]["model"] = "x"
    assert state(run, baseline()) == []
