"""The job is killed, and before it comes back its files have been damaged: cut short, missing, or with one bit flipped.

What must hold: a damaged checkpoint is never taken for a good one. With an older good one the job resumes from that; with
none left it refuses, naming the file, what was expected and what was found, and leaves everything as it is.
Controls: test_control.py; and here, the same kill with no damage.
"""

from __future__ import annotations

import pytest
from saves import FORMATS, short_job

KILL = "sigkill all ranks at step 7"  # the newest checkpoint is then that of batch 6
LENGTHS = ["byte 0", "byte 1", "50%", "last byte"]
CUTS = [("sharded", length) for length in LENGTHS] + [("single", "byte 0"), ("single", "last byte"), ("dcp", "50%")]


def ranks(format):
    """Only the shards need two ranks; so the other cases cost half."""
    return 2 if format == "sharded" else 1


def target(format, checkpoint):
    """The data file of the last rank, which is the whole file for `single`."""
    return {"single": checkpoint, "sharded": f"{checkpoint}/rank1.bin", "dcp": f"{checkpoint}/__0_*.distcp"}[format]


@pytest.mark.control
@pytest.mark.parametrize(("format", "ranks"), [("single", 2), ("sharded", 2), ("dcp", 2)])
def test_the_kill_alone_loses_nothing(check_resume, format, ranks):
    check_resume(short_job(format, ranks=ranks, faults=KILL))


@pytest.mark.parametrize(("format", "length"), CUTS)
def test_the_newest_is_cut_short(check_resume, format, length):
    check_resume(short_job(format, ranks=ranks(format), faults=[KILL, f"truncate {target(format, 'newest')} to {length}"]))


@pytest.mark.parametrize(
    ("format", "length"), [("single", "byte 0"), ("sharded", "50%"), ("sharded", "last byte"), ("dcp", "50%")]
)
def test_all_are_cut_short(check_resume, format, length):
    check_resume(
        short_job(format, ranks=ranks(format), faults=[KILL, f"truncate {target(format, 'every')} to {length}"], expect="refuses")
    )


@pytest.mark.parametrize(("format", "file"), [("single", "step-00000006.pt"), ("sharded", "step-00000006/rank0.bin")])
def test_a_disk_that_does_not_read_once_costs_nothing(check_resume, format, file):
    # The job may decline that time; what it could not read is not damaged, and the next start resumes from it.
    verdict = check_resume(short_job(format, ranks=ranks(format), faults=[KILL, f"EIO rank 0 on read {file} attempt 1"]))
    assert verdict.resumed_from[-1] == 6


@pytest.mark.parametrize("format", FORMATS)
def test_a_shard_of_the_newest_is_missing(check_resume, format):
    check_resume(short_job(format, ranks=ranks(format), faults=[KILL, f"delete {target(format, 'newest')}"]))


@pytest.mark.parametrize("format", ["sharded", "dcp"])
def test_a_shard_of_all_is_missing(check_resume, format):
    check_resume(short_job(format, ranks=ranks(format), faults=[KILL, f"delete {target(format, 'every')}"], expect="refuses"))


@pytest.mark.parametrize("format", ["sharded", "dcp"])
def test_the_manifest_of_the_newest_is_missing(check_resume, format):
    check_resume(short_job(format, ranks=ranks(format), faults=[KILL, "delete newest/manifest.json"]))


def test_the_manifest_of_the_newest_is_empty(check_resume):
    check_resume(short_job("sharded", faults=[KILL, "truncate newest/manifest.json to byte 0"]))


@pytest.mark.parametrize(("format", "place"), [("single", "90%"), ("sharded", "50%"), ("dcp", "50%")])
def test_one_bit_of_the_newest_is_flipped(check_resume, format, place):
    check_resume(short_job(format, ranks=ranks(format), faults=[KILL, f"flip {target(format, 'newest')} at {place} bit 3"]))


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_one_bit_of_all_is_flipped(check_resume, format):
    check_resume(
        short_job(format, ranks=ranks(format), faults=[KILL, f"flip {target(format, 'every')} at 60%"], expect="refuses")
    )
