"""State that is split over the ranks, and saves that go on in the background: killed in a save, and put together again.

DDP, ZeRO-1 and FSDP2 in the formats that treat them differently; `dcp-async` and `safetensors`, which the other files leave
out; a change of the number of ranks for each. Controls: here.
"""

from __future__ import annotations

import pytest
from saves import SAVE, short_job


@pytest.mark.control
@pytest.mark.parametrize(("format", "parallelism"), [("dcp-async", "ddp"), ("sharded", "fsdp2")])
def test_nothing_is_done_to_the_job(check_resume, format, parallelism):
    check_resume(short_job(format, parallelism=parallelism))


@pytest.mark.parametrize(
    ("format", "parallelism", "target"),
    [
        ("sharded", "zero1", f"{SAVE}/rank1.bin.tmp"),
        ("sharded", "fsdp2", f"{SAVE}/rank1.bin.tmp"),
        ("dcp", "zero1", f"{SAVE}/__1_*"),
        ("single", "zero1", f"{SAVE}.pt.*.tmp"),
        ("safetensors", "zero1", f"{SAVE}/training.bin.tmp"),
    ],
)
def test_a_rank_dies_in_the_middle_of_a_write(check_resume, format, parallelism, target):
    check_resume(short_job(format, parallelism=parallelism, faults=f"sigkill any rank during write {target} at 50%"))


@pytest.mark.parametrize(
    "fault",
    [
        f"sigkill rank 1 during write {SAVE}/__1_* at 50%",
        f"sigkill rank 0 before rename {SAVE}/manifest.json",
        f"sigkill all ranks after rename {SAVE}/manifest.json by rank 0",
        f"ENOSPC rank 1 on write {SAVE}/__1_*",
    ],
)
def test_a_save_in_the_background_is_hit(check_resume, fault):
    check_resume(short_job("dcp-async", faults=fault))


@pytest.mark.parametrize("length", ["byte 0", "last byte"])
@pytest.mark.parametrize("file", ["model.safetensors", "training.bin"])
def test_a_file_of_an_export_is_cut_short(check_resume, file, length):
    faults = ["sigkill all ranks at step 7", f"truncate newest/{file} to {length}"]
    check_resume(short_job("safetensors", ranks=1, faults=faults))


@pytest.mark.parametrize(
    ("format", "parallelism", "ranks"),
    [("sharded", "zero1", (4, 2)), ("dcp", "zero1", (2, 1)), ("safetensors", "zero1", (1, 2))],
)
def test_it_goes_on_with_another_number_of_ranks(check_resume, format, parallelism, ranks):
    settings = {"parallelism": parallelism, "rng_scope": "global", "reshard": format == "sharded"}
    check_resume(short_job(format, ranks=ranks, faults="sigkill all ranks at step 5", **settings))
