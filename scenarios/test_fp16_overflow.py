"""A batch overflows in FP16: the logits leave the range, the step is skipped on every rank, the loss scale is halved.

What must hold: the overflow is handled (no weight becomes non-finite, the schedule does not advance), and a job that is
killed near it resumes to the same losses, skips and scales as the uninterrupted run, which has the same bad batch.
Controls: test_control.py runs FP16 without a bad batch; the first test here has a bad batch and no kill.
"""

from __future__ import annotations

import pytest
from saves import short_job

KILL = "sigkill all ranks at step 5"  # in batch 6, two after the checkpoint of batch 4: one of them was skipped


def fp16(format, ranks, *faults):
    return short_job(format, ranks=ranks, precision="fp16", faults=faults)


@pytest.mark.control
@pytest.mark.parametrize(("format", "ranks"), [("single", 1), ("sharded", 2)])
def test_an_overflow_batch_and_no_kill(check_resume, format, ranks):
    check_resume(fp16(format, ranks, "overflow all ranks at batch 5"))


@pytest.mark.parametrize(("format", "ranks"), [("single", 1), ("sharded", 2), ("dcp", 2)])
def test_one_overflow_batch(check_resume, format, ranks):
    check_resume(fp16(format, ranks, "overflow all ranks at batch 5", KILL))


@pytest.mark.parametrize("format", ["sharded"])
def test_three_overflow_batches_in_a_row(check_resume, format):
    check_resume(fp16(format, 2, "overflow all ranks at batch 3 times 3", "sigkill all ranks at step 3"))


@pytest.mark.parametrize("format", ["single", "dcp"])
def test_an_overflow_batch_right_before_a_save(check_resume, format):
    check_resume(fp16(format, 2, "overflow all ranks at batch 4", KILL))


@pytest.mark.parametrize("format", ["sharded"])
def test_an_overflow_batch_is_the_first_after_the_resume(check_resume, format):
    check_resume(fp16(format, 2, "overflow all ranks at batch 5", KILL))


@pytest.mark.parametrize(("format", "ranks"), [("sharded", 2), ("dcp", 2)])
def test_an_overflow_batch_on_one_rank_only(check_resume, format, ranks):
    check_resume(fp16(format, ranks, "overflow rank 1 at batch 5", KILL))


@pytest.mark.parametrize("effect", ["nonfinite-grad"])
def test_another_bad_batch_on_one_rank_only(check_resume, effect):
    check_resume(fp16("sharded", 2, f"{effect} rank 1 at batch 5", KILL))
