"""Every operation of a kind fails, one in each run, until a run ends in which there was none left to fail.

What must hold, whichever it is: no checkpoint that was reported as saved is lost, nothing half-made is taken for good, no rank
waits for ever, the job says which error it met and where, and, started again, it resumes exactly.
All kinds of operations, of both ranks: tests/quality/test_error_loop.py.
"""

from __future__ import annotations

from harness import job
from harness.error_loop import error_loop


def test_no_space_at_any_write_of_a_job(harness_workbench, tmp_path):
    scenario = job("single", ranks=1, steps=2, save_every=1, keep_last=1, batches_per_epoch=2, width=16, name="no-space")
    result = error_loop(scenario, harness_workbench, tmp_path, "ENOSPC", "write")
    assert result.outcome == "PASS", result.describe()
    assert result.num_operations >= 4
