"""The job is killed, and before it comes back its files have been damaged: cut short, missing, or with one bit flipped.

What must hold: a damaged checkpoint is never taken for a good one. With an older good one the job resumes from that; with
none left it refuses, naming the file, what was expected and what was found, and leaves everything as it is.
Controls: test_control.py; and here, the same kill with no damage.
"""

from __future__ import annotations

import pytest
from saves import FORMATS

from harness import reference

KILL = "sigkill all ranks at step 18"  # the newest checkpoint is then that of batch 16
LENGTHS = ["byte 0", "byte 1", "50%", "last byte"]


def target(format, checkpoint):
    """The data file of rank 1, which is the whole file for `single`."""
    return {"single": checkpoint, "sharded": f"{checkpoint}/rank1.bin", "dcp": f"{checkpoint}/__1_*.distcp"}[format]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_kill_alone_loses_nothing(check_resume, format, ranks):
    check_resume(reference(format, ranks=ranks, faults=KILL))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("format", FORMATS)
def test_the_newest_is_cut_short(check_resume, format, length):
    check_resume(reference(format, faults=[KILL, f"truncate {target(format, 'newest')} to {length}"]))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("format", FORMATS)
def test_all_are_cut_short(check_resume, format, length):
    check_resume(reference(format, faults=[KILL, f"truncate {target(format, 'every')} to {length}"], expect="refuses"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_shard_of_the_newest_is_missing(check_resume, format):
    check_resume(reference(format, faults=[KILL, f"delete {target(format, 'newest')}"]))


@pytest.mark.parametrize("format", ["sharded", "dcp"])
def test_a_shard_of_all_is_missing(check_resume, format):
    check_resume(reference(format, faults=[KILL, f"delete {target(format, 'every')}"], expect="refuses"))


@pytest.mark.parametrize("format", ["sharded", "dcp"])
def test_the_manifest_of_the_newest_is_missing(check_resume, format):
    check_resume(reference(format, faults=[KILL, "delete newest/manifest.json"]))


@pytest.mark.parametrize("format", ["sharded", "dcp"])
def test_the_manifest_of_the_newest_is_empty(check_resume, format):
    check_resume(reference(format, faults=[KILL, "truncate newest/manifest.json to byte 0"]))


@pytest.mark.parametrize("place", ["10%", "50%", "90%"])
@pytest.mark.parametrize("format", FORMATS)
def test_one_bit_of_the_newest_is_flipped(check_resume, format, place):
    check_resume(reference(format, faults=[KILL, f"flip {target(format, 'newest')} at {place} bit 3"]))


@pytest.mark.parametrize("format", FORMATS)
def test_one_bit_of_all_is_flipped(check_resume, format):
    check_resume(reference(format, faults=[KILL, f"flip {target(format, 'every')} at 60%"], expect="refuses"))
