"""The job comes back on another number of ranks.

What must hold: the loss over all ranks is that of the uninterrupted run within 1e-4 at every batch (the order of
floating-point sums changes with the number of ranks, so the bits do not have to be equal). A format that cannot be loaded on
another number of ranks must say so and change nothing. Random streams are shared by all ranks (`rng_scope=global`).
Control: every number of ranks runs undisturbed in test_control.py.
"""

from __future__ import annotations

import pytest
from saves import SAVE, short_job

# Every change in the format that puts shards together by itself; the others, whose loaders do not care, in two each.
CHANGES = [("sharded", change) for change in ((4, 2), (2, 4), (2, 1), (1, 3))]
CHANGES += [("dcp", (4, 2)), ("dcp", (1, 3)), ("single", (2, 1)), ("single", (1, 3))]


@pytest.mark.parametrize(("format", "change"), CHANGES, ids=str)
def test_the_number_of_ranks_changes_after_a_kill(check_resume, format, change):
    check_resume(
        short_job(format, ranks=change, rng_scope="global", reshard=format == "sharded", faults="sigkill all ranks at step 5")
    )


def test_the_number_of_ranks_changes_after_a_kill_in_a_save(check_resume):
    check_resume(
        short_job(
            "sharded",
            ranks=(4, 2),
            rng_scope="global",
            reshard=True,
            faults=f"sigkill all ranks during write {SAVE}/rank0.bin.tmp at 50%",
        )
    )


@pytest.mark.parametrize("change", [(1, 3)], ids=str)
def test_a_format_that_cannot_be_resharded_refuses(check_resume, change):
    check_resume(short_job("sharded", ranks=change, rng_scope="global", faults="sigkill all ranks at step 5", expect="refuses"))


def test_the_loss_stays_with_the_uninterrupted_run_for_more_than_thirty_steps(check_resume):
    settings = {"steps": 40, "batches_per_epoch": 20, "save_every": 5, "rng_scope": "global", "reshard": True}
    verdict = check_resume(short_job("sharded", ranks=(2, 1), faults="sigkill all ranks at step 6", **settings))
    assert verdict.resumed_from == (5,)
    assert 0 < verdict.max_loss_diff <= 1e-4
