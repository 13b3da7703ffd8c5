"""Where a job is, and where a restart begins."""

from __future__ import annotations

import pytest
from known_jobs import job, records

from harness.chaos.places import checkpoint_patterns, general, read_places, recovery_places


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("ckpt-006.bin.tmp", "ckpt-*.bin.tmp"),
        ("step-00000002.pt.32511-246fdac9.tmp", "step-*.pt.*.tmp"),
        ("step-00000002/rank1.bin", "step-*/rank1.bin"),
        ("step-00000002/__0_0.distcp", "step-*/__*.distcp"),
        ("0123/456", "*/*"),
        ("a b/c", "*/c"),
        (".", "."),
    ],
)
def test_what_changes_from_run_to_run_is_left_open(path, pattern):
    assert general(path) == pattern


def test_each_save_is_a_place_to_begin_at():
    known = job()
    assert [start.step for start in known.starts] == [0, 2, 4, 6]
    after_first = known.after(known.starts[1])
    assert [(place.operation, place.step) for place in after_first][:3] == [("write", 4), ("rename", 4), ("fsync", 4)]
    assert known.steps_after(known.starts[1]) == (3, 4, 5, 6)


def test_an_occurrence_is_counted_from_where_the_attempt_begins():
    known = job()
    last = [place for place in known.places if place.operation == "rename"][-1]
    assert [known.occurrence(last, start) for start in known.starts[:3]] == [3, 2, 1]


def test_a_death_before_the_commit_loses_the_save_and_one_after_it_does_not():
    known = job()
    rename = next(place for place in known.places if place.operation == "rename" and place.step == 4)
    assert known.restart_after(0, rename.index, done=False).step == 2
    assert known.restart_after(0, rename.index, done=True).step == 4
    assert known.restart_after(0, rename.index + 1, done=False).step == 4  # at the fsync that follows it


def test_the_death_of_another_rank_is_placed_by_the_commit_of_the_first():
    known = job(ranks=2)
    write = next(place for place in known.places if place.rank == 1 and place.step == 4)
    assert known.restart_after(1, write.index, done=True).step == 2
    assert known.restart_after(1, write.index + 1, done=False).step == 4  # its save has ended there


def test_saves_that_nobody_reports_are_guessed_by_what_is_renamed():
    _, _, starts = read_places(records(marks=False))
    assert [start.step for start in starts] == [0, 2, 4, 6]


def test_what_a_restart_reads_is_what_comes_before_its_first_batch():
    read = {"event": "operation", "rank": 0, "operation": "read", "path": "ckpt-002.bin", "to": None, "size_bytes": 0}
    (place,) = recovery_places([read, *records()])
    assert (place.operation, place.pattern) == ("read", "ckpt-*.bin")


def test_the_newest_checkpoint_is_told_by_its_number():
    assert checkpoint_patterns({"ckpt-9.bin": 5, "ckpt-12.bin": 7, "notes": 1}) == (2, (), 7)
    folders = {"step-2/rank0.bin": 5, "step-2/manifest.json": 1, "step-4/rank0.bin": 6, "step-4/manifest.json": 1}
    assert checkpoint_patterns(folders) == (2, ("manifest.json", "rank0.bin"), 7)
    assert checkpoint_patterns({}) == (0, (), 0)
