from __future__ import annotations

import os

import pytest

from harness.reference.rotation import remove_leftovers, rotate_checkpoints


def make(parent, *batches: int) -> list:
    made = []
    for batch in batches:
        path = parent / f"step-{batch:08d}"
        path.mkdir()
        (path / "rank0.bin").touch()
        (path / "manifest.json").touch()
        made.append(path)
    return made


def names(parent) -> list[str]:
    return sorted(os.listdir(parent))


def test_the_newest_by_number_stay_whatever_their_times(tmp_path):
    for number, path in enumerate(make(tmp_path, 4, 8, 12, 100000000)):
        os.utime(path, (1000 - number, 1000 - number))
    removed = rotate_checkpoints(tmp_path, keep_last=2)
    assert [path.name for path in removed] == ["step-00000004", "step-00000008"]
    assert names(tmp_path) == ["step-00000012", "step-100000000"]


def test_files_are_rotated_too_and_strangers_are_not(tmp_path):
    for name in ("step-00000004.pt", "step-00000008.pt", "notes.txt", "step-1.pt", "checkpoint.pt"):
        (tmp_path / name).touch()
    rotate_checkpoints(tmp_path, keep_last=1)
    assert names(tmp_path) == ["checkpoint.pt", "notes.txt", "step-00000008.pt", "step-1.pt"]


@pytest.mark.parametrize("keep_last", [0, -1])
def test_the_last_one_cannot_be_rotated_away(tmp_path, keep_last):
    make(tmp_path, 4)
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        rotate_checkpoints(tmp_path, keep_last=keep_last)
    assert names(tmp_path) == ["step-00000004"]


def test_a_corrupt_newer_one_does_not_push_out_the_last_good_one(tmp_path):
    _, corrupt_12, corrupt_16 = make(tmp_path, 8, 12, 16)
    rotate_checkpoints(tmp_path, keep_last=1, corrupt={corrupt_12, corrupt_16})
    assert names(tmp_path) == ["step-00000008", "step-00000012", "step-00000016"]


def test_a_corrupt_one_goes_once_a_newer_good_one_exists(tmp_path):
    _, corrupt_12, corrupt_20, _ = make(tmp_path, 8, 12, 20, 16)
    rotate_checkpoints(tmp_path, keep_last=2, corrupt={corrupt_12, corrupt_20})
    assert names(tmp_path) == ["step-00000008", "step-00000016", "step-00000020"]


def test_uncommitted_directories_are_neither_counted_nor_removed_by_rotation(tmp_path):
    make(tmp_path, 4)
    (tmp_path / "step-00000008").mkdir()
    rotate_checkpoints(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step-00000004", "step-00000008"]


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    make(tmp_path, 4, 8)
    (tmp_path / "step-00000008/manifest.json").unlink()
    for name in ("step-00000012.pt.7-ab.tmp", "checkpoint.pt.7-ab.tmp", "mine.tmp", "step-00000012.pt"):
        (tmp_path / name).touch()
    (tmp_path / "step-00000004/manifest.json.tmp").touch()
    removed = sorted(path.name for path in remove_leftovers(tmp_path))
    assert removed == ["checkpoint.pt.7-ab.tmp", "manifest.json.tmp", "step-00000008", "step-00000012.pt.7-ab.tmp"]
    assert names(tmp_path) == ["mine.tmp", "step-00000004", "step-00000012.pt"]
    assert names(tmp_path / "step-00000004") == ["manifest.json", "rank0.bin"]
    assert remove_leftovers(tmp_path / "none") == []
