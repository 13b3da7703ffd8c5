"""The job comes back on another number of ranks.

What must hold: the loss over all ranks is that of the uninterrupted run within 1e-4 at every batch (the order of
floating-point sums changes with the number of ranks, so the bits do not have to be equal). A format that cannot be loaded on
another number of ranks must say so and change nothing. Random streams are shared by all ranks (`rng_scope=global`).
Control: every number of ranks runs undisturbed in test_control.py.
"""

from __future__ import annotations

import pytest
from saves import FORMATS

from harness import job

CHANGES = [(4, 2), (2, 4), (2, 1), (1, 3)]


def ids(change):
    return f"{change[0]}-to-{change[1]}"


@pytest.mark.parametrize("change", CHANGES, ids=ids)
@pytest.mark.parametrize("format", FORMATS)
def test_the_number_of_ranks_changes_after_a_kill(check_resume, format, change):
    check_resume(
        job(format, ranks=change, rng_scope="global", reshard=format == "sharded", faults="sigkill all ranks at step 14")
    )


def test_the_number_of_ranks_changes_after_a_kill_in_a_save(check_resume):
    check_resume(
        job(
            "sharded",
            ranks=(4, 2),
            rng_scope="global",
            reshard=True,
            faults="sigkill all ranks during write step-00000016/rank0.bin.tmp at 50%",
        )
    )


@pytest.mark.parametrize("change", [(4, 2), (1, 3)], ids=ids)
def test_a_format_that_cannot_be_resharded_refuses(check_resume, change):
    check_resume(job("sharded", ranks=change, rng_scope="global", faults="sigkill all ranks at step 14", expect="refuses"))
