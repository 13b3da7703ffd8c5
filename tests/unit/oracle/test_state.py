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


def resharded(path, ranks=(2, 1)):
    """The case killed at step 14 and resumed from step 12 on another number of ranks."""
    first = attempt(0, 1, 14, path=path, ranks=ranks[0])
    second = attempt(1, 13, STEPS, path=path, ranks=ranks[1], resumed=12, ended=True)
    return run_of(first, second, case=scenario(("sigkill rank 0 at step 14",), ranks=ranks))


def load(run, rank):
    return said(run, 1, rank, "state", moment="load")


def test_another_number_of_ranks_with_the_same_whole_passes(tmp_path):
    for ranks in ((2, 1), (1, 2), (2, 3)):
        assert state(resharded(tmp_path, ranks), baseline(ranks[0])) == []


def test_what_is_lost_over_a_change_of_the_number_of_ranks_is_named(tmp_path):
    run = resharded(tmp_path, (2, 3))
    load(run, 2)["common"]["scheduler"] = "51e0"
    finding = only(state(run, baseline()), "state-lost")
    assert (finding.component, finding.rank, finding.step, finding.attempt) == ("scheduler", 2, 12, 1)
    assert (finding.expected, finding.found) == (digest("scheduler", 12)[:16], "00000000000051e0")
    assert finding.message.endswith("(attempt 1) is not what it was before the save on 2 ranks")


def test_parts_that_ranks_hold_alone_add_up_to_the_whole(tmp_path):
    run = resharded(tmp_path, (2, 3))
    shares = {(0, 0): 2**64 - 5, (0, 1): 12, (1, 0): 1, (1, 1): 2, (1, 2): 4}  # 7 on either side, modulo 2^64
    for (index, rank), share in shares.items():
        for record in run.attempts[index].ranks[rank].of("state", step=12):
            record["own"] = {"optimizer": f"{share:x}"}
    assert state(run, baseline()) == []
    load(run, 1)["own"]["optimizer"] = "3"
    assert [(f.component, f.rank) for f in state(run, baseline())] == [("optimizer", rank) for rank in (0, 1, 2)]


@pytest.mark.parametrize("broken", [None, {}, {"model": 5}, {"model": "no number"}, []])
def test_without_the_whole_of_every_rank_a_change_is_not_compared(tmp_path, broken):
    run = resharded(tmp_path)
    load(run, 0)["common"]["model"] = "7"
    assert kinds(state(run, baseline())) == ["state-lost"]
    said(run, 0, 1, "state", moment="save", step=12)["common"] = broken
    assert state(run, baseline()) == []


def test_after_a_change_only_what_no_rounding_enters_is_held_against_the_uninterrupted_run(tmp_path):
    run = resharded(tmp_path)
    later = said(run, 1, 0, "state", moment="save", step=20)
    later["common"] |= {"model": "7", "optimizer": "7", "counters.loss_history": "7"}
    assert state(run, baseline()) == []
    later["common"]["scheduler"] = "7"
    finding = only(state(run, baseline()), "state-lost")
    assert (finding.component, finding.expected) == ("scheduler", digest("scheduler", 20)[:16])
    assert "before the save of batch 20" in finding.message


def test_back_on_the_first_number_of_ranks_the_rounding_is_that_of_the_work_between(tmp_path):
    first = attempt(0, 1, 10, path=tmp_path)
    second = attempt(1, 9, 14, path=tmp_path, ranks=1, resumed=8)
    third = attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True)
    run = run_of(first, second, third, case=scenario(ranks=(2, 1, 2)))
    for index, moment in ((1, "save"), (2, "load")):
        for rank in run.attempts[index].ranks:
            record = said(run, index, rank, "state", moment=moment, step=12)
            record["digests"]["model"] = record["common"]["model"] = "7"
    assert state(run, baseline()) == []
    said(run, 2, 1, "state", moment="load")["common"]["model"] = "8"
    assert only(state(run, baseline()), "state-lost").rank == 1


def test_the_uninterrupted_run_is_compared_whatever_format_it_saves_in():
    run = killed_and_resumed(format="sharded")
    for index, moment in ((0, "save"), (1, "load")):
        said(run, index, 0, "state", moment=moment, step=12)["digests"]["buffers"] = "other"
    assert only(state(run, baseline()), "state-lost").message.endswith("is not what it was in the uninterrupted run")


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


def test_what_one_rank_has_lost_explains_what_goes_wrong_on_the_others():
    run = killed_and_resumed()
    said(run, 1, 1, "state", moment="load")["digests"]["rng.torch"] = "x"
    said(run, 1, 0, "state", moment="save", step=20)["digests"] |= {"model": "x", "optimizer": "x"}
    finding = only(state(run, baseline()), "state-lost")
    assert (finding.component, finding.rank, finding.late) == ("rng.torch", 1, False)


def test_of_what_goes_wrong_later_on_several_ranks_the_first_cause_is_named():
    run = killed_and_resumed()
    for rank, component in ((0, "optimizer"), (1, "data")):
        said(run, 1, rank, "state", moment="save", step=20)["digests"][component] = "x"
    finding = only(state(run, baseline()), "state-lost")
    assert (finding.component, finding.rank, finding.late) == ("data", 1, True)


def test_a_plainer_job_has_other_digests_and_is_not_compared():
    run = killed_and_resumed(compare_with="plain")
    said(run, 1, 1, "state", moment="end")["digests"]["model"] = "x"
    assert state(run, baseline()) == []
