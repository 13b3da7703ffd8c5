from __future__ import annotations

import pytest
from histories import STEPS, attempt, baseline, killed_and_resumed, only, row, run_of, scenario

from harness.oracle.data import data
from harness.store import Baseline


def samples_of(batch: int) -> list[list[int]]:
    """The samples of a batch by rank, as the histories have them."""
    return [[batch * 12], [batch * 12 + 1]]


def take(run, batch: int, samples: list[list[int]]) -> None:
    for rank, own in enumerate(samples):
        row(run, 1, rank, batch)["samples"] = own


def test_the_same_samples_pass():
    assert data(killed_and_resumed(), baseline()) == []


@pytest.mark.parametrize(("twin", "kind"), [(13, "data-repeated"), (9, "data-repeated"), (15, "data-skipped")])
def test_the_samples_of_another_batch(twin, kind):
    run = killed_and_resumed()
    for batch in (14, 15):
        take(run, batch, samples_of(batch + twin - 14))
    finding = only(data(run, baseline()), kind)
    assert (finding.component, finding.step, finding.attempt) == ("data", 14, 1)
    assert finding.message == f"batch 14 of attempt 1 took the samples of batch {twin}"
    assert (finding.expected, finding.found) == ("samples 168-169", f"samples {twin * 12}-{twin * 12 + 1}")


def test_samples_that_no_batch_holds_are_another_order():
    run = killed_and_resumed()
    take(run, 14, [[168], [13]])
    finding = only(data(run, baseline()), "diverged")
    assert "no batch of the uninterrupted run holds together" in finding.message


def test_an_order_that_is_the_same_in_every_epoch_is_told_by_the_nearest_batch():
    run, golden = killed_and_resumed(), baseline()
    for log in golden.ranks.values():
        for record in log.of("batch"):
            record["samples"] = [record["samples"][0] % 72]  # six batches an epoch
    for rank in (0, 1):
        for index in (0, 1):
            for record in run.attempts[index].ranks[rank].of("batch"):
                record["samples"] = [record["samples"][0] % 72]
    assert data(run, golden) == []
    take(run, 14, samples_of(3))
    assert only(data(run, golden), "data-skipped").message.endswith("the samples of batch 15")


def test_a_batch_that_not_every_rank_has_done_is_not_looked_at():
    run = killed_and_resumed()
    for rank, own in enumerate(([156], [7])):
        row(run, 1, rank, 13)["samples"] = own
    log = run.attempts[1].ranks[0]
    log.records.remove(row(run, 1, 0, 13))
    assert data(run, baseline()) == []


def test_ranks_may_change_places_and_number(tmp_path):
    run = killed_and_resumed()
    take(run, 14, list(reversed(samples_of(14))))
    assert data(run, baseline()) == []
    run = run_of(
        attempt(0, 1, 14, path=tmp_path),
        attempt(1, 13, STEPS, path=tmp_path, ranks=1, resumed=12, ended=True),
        case=scenario(ranks=(2, 1)),
    )
    for record in run.attempts[1].ranks[0].of("batch"):
        record["samples"] = [index for own in samples_of(record["batch"]) for index in own]
    assert data(run, baseline()) == []
    row(run, 1, 0, 20)["samples"] = [19 * 12, 19 * 12 + 1]
    assert only(data(run, baseline()), "data-repeated").step == 20


def test_a_trainer_that_names_no_samples_is_not_judged():
    run = killed_and_resumed()
    for rank in (0, 1):
        for record in run.attempts[1].ranks[rank].of("batch"):
            del record["samples"]
    assert data(run, baseline()) == []


def test_an_unstable_baseline_says_nothing():
    run = killed_and_resumed()
    take(run, 14, samples_of(13))
    assert data(run, Baseline(2, baseline().ranks, unstable="rank 0")) == []


def test_many_samples_are_shortened():
    run, golden = killed_and_resumed(), baseline()
    for rank in (0, 1):
        next(r for r in golden.ranks[rank].of("batch") if r["batch"] == 15)["samples"] = list(range(rank, 40, 2))
    assert only(data(run, golden), "diverged").expected == "samples 0-11 and 28 more"
