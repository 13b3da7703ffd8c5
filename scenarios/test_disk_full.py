"""The disk has no room: one operation of a save fails, a quota is reached, or a file system is really full.

What must hold: the last good checkpoint survives byte for byte. With `on_save_error=fail` the job ends with a clear error
and, restarted with room, resumes exactly; with `continue` it gives up that save only and trains on to the end.
The `full-disk` cases run on a tmpfs of that size; the `quota` cases need no privilege. Controls: test_control.py.
"""

from __future__ import annotations

import pytest
from saves import SAVE, any_file, short_job

# Every kind of operation that a save makes, in its order.
SINGLE = [
    f"open {SAVE}.pt.*.tmp",
    f"write {SAVE}.pt.*.tmp",
    f"write {SAVE}.pt.*.tmp occurrence 5",
    f"fsync {SAVE}.pt.*.tmp",
    f"rename {SAVE}.pt",
]
SHARDED = [
    f"mkdir {SAVE}",
    f"write {SAVE}/rank1.bin.tmp",
    f"fsync {SAVE}/rank1.bin.tmp",
    f"write {SAVE}/manifest.json.tmp",
    f"rename {SAVE}/manifest.json",
]
DCP = [
    f"mkdir {SAVE}",
    f"write {SAVE}/__1_*",
    f"rename {SAVE}/.metadata",
    f"rename {SAVE}/manifest.json",
]
OPERATIONS = [(name, where) for name, places in (("single", SINGLE), ("sharded", SHARDED), ("dcp", DCP)) for where in places]
PROMISES = [("single", "fail"), ("dcp", "fail"), ("sharded", "continue")]
# Room for two checkpoints, not for the third that a save needs before it can rotate.
QUOTA_BYTES = {"single": 950_000, "sharded": 950_000, "dcp": 1_250_000}


@pytest.mark.parametrize(("format", "where"), OPERATIONS)
def test_no_space_at_an_operation_of_a_save_and_the_job_fails(check_resume, format, where):
    check_resume(short_job(format, ranks=1 if format == "single" else 2, faults=f"ENOSPC any rank on {where}"))


@pytest.mark.parametrize(("format", "where"), OPERATIONS[1::9])
def test_no_space_at_an_operation_of_a_save_and_the_job_goes_on(check_resume, format, where):
    check_resume(short_job(format, ranks=2, faults=f"ENOSPC any rank on {where}", on_save_error="continue"))


@pytest.mark.parametrize("format", ["sharded"])
def test_an_input_output_error_when_the_file_is_made_durable(check_resume, format):
    check_resume(short_job(format, ranks=2, faults=f"EIO any rank on fsync {any_file(format)}"))


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_a_write_that_lands_only_in_part_is_continued(check_resume, format):
    check_resume(short_job(format, ranks=2, faults=f"short-write any rank on write {any_file(format)} at 30%"))


@pytest.mark.parametrize(("format", "on_save_error"), PROMISES)
def test_a_quota_is_reached(check_resume, format, on_save_error):
    check_resume(short_job(format, ranks=2, faults=f"quota {QUOTA_BYTES[format]} bytes", on_save_error=on_save_error))


@pytest.mark.parametrize(("format", "on_save_error"), PROMISES)
def test_a_file_system_is_really_full(check_resume, format, on_save_error):
    check_resume(short_job(format, ranks=2, faults=f"full-disk {QUOTA_BYTES[format]} bytes", on_save_error=on_save_error))


@pytest.mark.parametrize("format", ["sharded"])
def test_the_disk_is_full_and_then_a_rank_dies(check_resume, format):
    first = f"ENOSPC any rank on write {any_file(format)}"
    check_resume(short_job(format, ranks=2, faults=[first, "sigkill rank 1 at step 5 attempt 1"]))
