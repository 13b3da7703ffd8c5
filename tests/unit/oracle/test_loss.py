from __future__ import annotations

import math

import pytest
from histories import (
    STEPS,
    attempt,
    baseline,
    fired,
    killed_and_resumed,
    kinds,
    loss_of,
    only,
    row,
    run_of,
    said,
    scenario,
)

from harness.oracle.loss import loss, max_difference


def test_an_equal_curve_passes_and_the_difference_is_exactly_zero():
    run = killed_and_resumed()
    assert loss(run, baseline()) == []
    assert max_difference(run, baseline()) == 0


def test_the_first_difference_is_named_with_both_values():
    run = killed_and_resumed()
    for batch in range(15, 20):
        row(run, 1, 1, batch)["loss"] = (loss_of(batch, 1) + 2**-8).hex()
    finding = only(loss(run, baseline()), "diverged")
    assert (finding.step, finding.rank, finding.attempt) == (15, 1, 1)
    assert finding.message == "loss differs at step 15, 3 steps after the resume (5 of 12 differ)"
    assert float.fromhex(finding.expected) == loss_of(15, 1)
    assert float.fromhex(finding.found) == loss_of(15, 1) + 2**-8
    assert max_difference(run, baseline()) == 2**-8


def test_a_difference_within_the_tolerance_passes_but_is_not_zero():
    run = killed_and_resumed()
    row(run, 1, 0, 20)["global_loss"] = (loss_of(20) + 2**-20).hex()
    assert loss(run, baseline()) == []
    assert max_difference(run, baseline()) == 2**-20


def test_the_rank_whose_own_loss_differs_is_named_not_the_first():
    run = killed_and_resumed()
    for rank in (0, 1):
        row(run, 1, rank, 13)["global_loss"] = (loss_of(13) + 0.5).hex()
    row(run, 1, 1, 13)["loss"] = (loss_of(13, 1) + 1).hex()
    finding = only(loss(run, baseline()), "diverged")
    assert finding.rank == 1
    assert finding.message == "loss differs at step 13, the first step after the resume (1 of 12 differ)"


def test_every_attempt_is_compared_not_only_the_last():
    run = killed_and_resumed()
    row(run, 0, 0, 5)["loss"] = (9.0).hex()
    finding = only(loss(run, baseline()), "diverged")
    assert (finding.attempt, finding.step) == (0, 5)
    assert "before any resume (1 of 14 differ)" in finding.message


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", None, "rubbish"])
@pytest.mark.parametrize("side", ["resumed", "uninterrupted"])
def test_what_is_no_number_equals_nothing(word, side):
    run, golden = killed_and_resumed(), baseline()
    rows = [record for record in golden.ranks[0].records if record.get("batch") == 18]
    for record in [row(run, 1, 0, 18)] if side == "resumed" else rows:
        record["loss"] = word
    finding = only(loss(run, golden), "diverged")
    assert (finding.step, finding.rank) == (18, 0)
    assert not math.isfinite(max_difference(run, golden))


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", None, "rubbish"])
def test_a_loss_that_is_no_number_in_the_uninterrupted_run_either_cannot_be_compared(word):
    run, golden = killed_and_resumed(), baseline()
    for record in (row(run, 1, 0, 18), *(one for one in golden.ranks[0].records if one.get("batch") == 18)):
        record["loss"] = word
    finding = only(loss(run, golden), "not-comparable")
    assert (finding.step, finding.rank, finding.attempt) == (18, 0, 1)
    assert (
        "the loss of batch 18 is no finite number, in the uninterrupted run as in attempt 1 (1 of 12 batches)" in finding.message
    )
    assert math.isnan(max_difference(run, golden))
    row(run, 1, 0, 20)["loss"] = "0x1p+9"
    assert kinds(loss(run, golden)) == ["diverged", "not-comparable"]


def test_a_batch_that_both_skip_for_the_same_reason_is_equal():
    skips = {18: "non_finite_loss"}
    run = run_of(
        attempt(0, 1, 14, path=killed_and_resumed().directory.path),
        attempt(1, 13, STEPS, resumed=12, ended=True, path=killed_and_resumed().directory.path, skips=skips),
    )
    assert loss(run, baseline(skips=skips)) == []
    assert max_difference(run, baseline(skips=skips)) == 0


def test_a_batch_that_is_skipped_for_another_reason_differs():
    run = killed_and_resumed()
    golden = baseline(skips={24: "non_finite_grad"})
    for rank in (0, 1):
        row(run, 1, rank, 24).update(tag="SKIP", step=23, reason="non_finite_loss")
    finding = only(loss(run, golden), "diverged")
    assert (finding.expected, finding.found) == ("SKIP non_finite_grad, step 23", "SKIP non_finite_loss, step 23")


@pytest.mark.parametrize("change", [{"tag": "SKIP", "step": 14, "reason": "non_finite_grad"}, {"step": 14}])
def test_tag_and_step_must_be_equal(change):
    run = killed_and_resumed()
    row(run, 1, 0, 15).update(change)
    finding = only(loss(run, baseline()), "diverged")
    assert finding.expected == "STEP, step 15"
    assert "step 14" in finding.found
    assert "took another course (1 of 12 differ)" in finding.message


def test_on_another_world_size_only_the_global_loss_is_compared(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired("sigkill rank 1 at step 14"),))
    second = attempt(1, 13, STEPS, path=tmp_path, ranks=3, resumed=12, ended=True)
    run = run_of(first, second, case=scenario(ranks=(2, 3)))
    for record in second.ranks[0].records:
        if record["event"] == "batch":
            record["loss"] = (17.0).hex()
    assert loss(run, baseline()) == []
    assert max_difference(run, baseline()) == 0
    row(run, 1, 2, 16)["global_loss"] = (17.0).hex()
    assert only(loss(run, baseline()), "diverged").rank == 2


def test_empty_sets_are_not_comparable():
    run, golden = killed_and_resumed(), baseline()
    for log in golden.ranks.values():
        log.records[:] = [record for record in log.records if record["event"] != "batch"]
    assert only(loss(run, golden), "not-comparable").message.startswith("the uninterrupted run logged no batch")
    assert max_difference(run, golden) is None
    for one in run.attempts:
        one.ranks.clear()
    assert only(loss(run, baseline()), "not-comparable").message.startswith("no attempt logged any batch")


def test_a_hole_is_reported_before_any_number():
    run = killed_and_resumed()
    for log in run.attempts[1].ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "batch" or r["batch"] not in (17, 18)]
    row(run, 1, 0, 20)["loss"] = "nan"
    found = loss(run, baseline())
    assert kinds(found) == ["data-skipped", "data-skipped", "data-skipped", "diverged"]
    assert found[0].message == "batches 17-18 were never done, in no attempt"
    assert found[1].message == "rank 0 did batch 19 where batch 17 was due, in attempt 1"


def test_a_missing_tail_of_a_job_that_says_it_is_done_is_a_silent_exit():
    run = killed_and_resumed()
    for log in run.attempts[1].ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "batch" or r["batch"] <= 20]
    assert only(loss(run, baseline()), "silent-exit").message == "batches 21-24 were never done, in no attempt"


def test_a_missing_tail_of_a_job_that_is_not_done_is_no_loss():
    run = killed_and_resumed()
    del run.attempts[1]
    assert loss(run, baseline()) == []


def test_batches_that_the_uninterrupted_run_never_did():
    run, golden = killed_and_resumed(), baseline()
    for log in golden.ranks.values():
        log.records[:] = [r for r in log.records if r.get("batch") != 24]
    finding = only(loss(run, golden), "diverged")
    assert (finding.message, finding.attempt) == ("batches 24 were done, which the uninterrupted run never did", 1)


def test_work_that_goes_on_somewhere_else_than_behind_the_checkpoint(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    again = attempt(1, 11, STEPS, path=tmp_path, resumed=12, ended=True)
    found = loss(run_of(first, again), baseline())
    assert kinds(found) == ["data-repeated", "data-repeated"]
    assert found[1].message == "rank 1 did batch 11 where batch 13 was due, in attempt 1"
    skipping = attempt(1, 15, STEPS, path=tmp_path, resumed=12, ended=True)
    assert kinds(loss(run_of(first, skipping), baseline())) == ["data-skipped", "data-skipped"]


def test_a_baseline_that_differs_from_itself_is_not_compared_with():
    golden = baseline()
    run = killed_and_resumed()
    row(run, 1, 0, 13)["loss"] = "nan"
    assert loss(run, type(golden)(golden.world_size, golden.ranks, unstable="rank 0, step 3")) == []


def test_a_rank_that_is_missing_is_left_to_the_control():
    run = killed_and_resumed()
    del run.attempts[1].ranks[1]
    assert loss(run, baseline()) == []
    assert said(run, 1, 0, "end")
