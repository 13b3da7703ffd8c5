"""Every sample once an epoch, counted over attempts on different numbers of ranks."""

from __future__ import annotations

import pytest
from histories import attempt, baseline, killed_and_resumed, only
from test_foreign_jobs import foreign

from harness.oracle.coverage import coverage

EPOCH = 16  # samples; the uninterrupted run takes two a batch, and passes through them three times


def case(samples_of, epoch=EPOCH):
    """Batches 1 to 12 on two ranks, then batches of four samples on one rank."""
    run = foreign(killed_and_resumed(), world_sizes=(2, 1))
    golden = baseline()
    for ranks in (golden.ranks, run.attempts[0].ranks):
        for rank, log in ranks.items():
            for record in log.of("batch"):
                record["samples"] = [(2 * (record["batch"] - 1) + rank) % epoch]
            log.__dict__.pop("batches", None)
    second = attempt(1, 13, 18, path=run.directory.path, ranks=1, resumed=12, ended=True, before=(4, 8, 12))
    for place, record in enumerate(second.ranks[0].of("batch")):
        record["samples"] = samples_of(place)
    run.attempts[1] = second
    return run, golden


def test_what_goes_on_where_it_was_takes_every_sample_once():
    # 24 samples are taken until batch 12: the second epoch goes on with its ninth sample.
    assert coverage(*case(lambda place: [(24 + 4 * place + n) % EPOCH for n in range(4)])) == []


def test_an_epoch_that_begins_again_is_told():
    found = only(coverage(*case(lambda place: [(4 * place + n) % EPOCH for n in range(4)])), "data-repeated")
    assert (found.component, found.attempt, found.step) == ("data", 1, 13)
    assert found.message.startswith("epoch 1 of 16 samples: 8 are taken more than once and 8 never")


@pytest.mark.parametrize("epoch", [10**6])
def test_without_an_epoch_there_is_nothing_to_count(epoch):
    assert coverage(*case(lambda _: [0, 0, 0, 0], epoch)) == []


def test_where_batches_can_be_compared_they_are():
    assert coverage(foreign(killed_and_resumed()), baseline()) == []
