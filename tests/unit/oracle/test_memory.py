"""What a load leaves in memory, beside the uninterrupted run."""

from __future__ import annotations

import pytest
from histories import baseline, killed_and_resumed, kinds, only
from test_foreign_jobs import foreign

from harness.oracle.memory import memory

MB = 1000  # in KiB, nearly
SIZE = 64 << 20


def watched_case(held=100 * MB, peak=150 * MB, size=SIZE):
    run, golden = foreign(killed_and_resumed()), baseline()
    for record in run.attempts[0].of("committed"):
        record["files"] = {path: [size, text] for path, (_, text) in record["files"].items()}
    for log in golden.ranks.values():
        log.records.append({"event": "memory", "batch": 2, "before_kib": 300 * MB, "peak_kib": 310 * MB, "held_kib": 400 * MB})
    for log in run.attempts[1].ranks.values():
        figures = {"before_kib": 500 * MB, "peak_kib": 500 * MB + peak, "held_kib": 500 * MB + held}
        log.records.append({"event": "memory", "batch": 14, **figures})
    return run, golden


@pytest.mark.parametrize(("held", "peak"), [(100 * MB, 150 * MB), (112 * MB, 150 * MB), (20 * MB, 0), (100 * MB, 260 * MB)])
def test_what_a_healthy_load_takes(held, peak):
    run, golden = watched_case(held, peak)
    assert memory(run, golden) == []


def test_what_was_loaded_is_still_alive():
    run, golden = watched_case(held=165 * MB)
    found = memory(run, golden)
    assert kinds(found) == ["load-memory"] * 2
    assert found[0].message == (
        "rank 0 holds 67 MB more after the load of step-00000012.pt (attempt 1) than the uninterrupted run after as many "
        "batches; the checkpoint is 67 MB: what was loaded is still alive"
    )
    assert (found[0].component, found[0].file, found[0].rank, found[0].attempt) == ("process", "step-00000012.pt", 0, 1)


def test_a_load_that_has_everything_in_memory_three_times():
    run, golden = watched_case(peak=300 * MB)
    assert kinds(memory(run, golden)) == ["load-memory"] * 2


def test_a_small_checkpoint_is_not_judged():
    run, golden = watched_case(held=300 * MB, size=1 << 20)
    assert memory(run, golden) == []


@pytest.mark.parametrize("damage", [{"held_kib": None}, {"before_kib": "x"}])
def test_figures_that_are_not_there_are_not_judged(damage):
    run, golden = watched_case(held=300 * MB)
    del run.attempts[1].ranks[1].records[-1]
    run.attempts[1].ranks[0].records[-1].update(damage)
    assert memory(run, golden) == []


def test_one_rank_alone_may_hold_too_much():
    run, golden = watched_case()
    run.attempts[1].ranks[1].records[-1]["held_kib"] += 65 * MB
    assert only(memory(run, golden), "load-memory").rank == 1
