"""Damage at rest: which file is hit, what is left of it, and that nothing outside the checkpoints ever is."""

from __future__ import annotations

import json
import pickle

import pytest

from harness.errors import UsageError
from harness.grammar import parse
from harness.inject.damage import apply, marker_of

DATA = bytes(range(100))


@pytest.fixture
def root(tmp_path):
    """Three committed checkpoints of two files each."""
    for step in (4, 8, 12):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "rank0.bin").write_bytes(DATA)
        (folder / "manifest.json").write_bytes(b"{}")
    return tmp_path


def content(root, step, name="rank0.bin"):
    path = root / f"step-{step:08d}" / name
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize(
    ("sentence", "left"),
    [
        ("truncate newest/*.bin to byte 0", b""),
        ("truncate newest/*.bin to byte 1", DATA[:1]),
        ("truncate newest/*.bin to 50%", DATA[:50]),
        ("truncate newest/*.bin to last byte", DATA[:99]),
        ("delete newest/*.bin", None),
        ("flip newest/*.bin at byte 3 bit 2", DATA[:3] + bytes([3 ^ 4]) + DATA[4:]),
        ("flip newest/*.bin at last byte", DATA[:99] + bytes([99 ^ 1])),
        ("flip newest/*.bin at 100%", DATA[:99] + bytes([99 ^ 1])),
    ],
)
def test_exactly_what_was_asked_for_is_left_and_only_there(root, sentence, left):
    (hit,) = apply(parse(sentence), root)
    assert (hit.path, hit.unchanged) == ("step-00000012/rank0.bin", False)
    assert content(root, 12) == left
    assert content(root, 12, "manifest.json") == b"{}"
    assert content(root, 8) == content(root, 4) == DATA


@pytest.mark.parametrize(
    ("place", "start", "stop"),
    [("byte 0", 0, 4096), ("byte 4095", 0, 4096), ("byte 4096", 4096, 8192), ("last byte", 8192, 9000), ("50%", 4096, 8192)],
)
def test_exactly_the_block_around_a_position_becomes_zeros(root, place, start, stop):
    data = b"x" * 9000
    (root / "step-00000012" / "rank0.bin").write_bytes(data)
    (hit,) = apply(parse(f"zero newest/rank0.bin at {place}"), root)
    assert (hit.path, hit.size_before, hit.size_after, hit.unchanged) == ("step-00000012/rank0.bin", 9000, 9000, False)
    assert content(root, 12) == data[:start] + bytes(stop - start) + data[stop:]
    (again,) = apply(parse(f"zero newest/rank0.bin at {place}"), root)
    assert again.unchanged


def test_two_files_change_places(root):
    (root / "step-00000012" / "rank1.bin").write_bytes(b"other")
    hit = apply(parse("swap newest/rank0.bin with rank*.bin"), root)
    assert [(item.path, item.size_before, item.size_after) for item in hit] == [
        ("step-00000012/rank0.bin", 100, 5),
        ("step-00000012/rank1.bin", 5, 100),
    ]
    assert (content(root, 12), content(root, 12, "rank1.bin"), content(root, 8)) == (b"other", DATA, DATA)
    assert apply(parse("swap newest/rank0.bin with rank2.bin"), root) == []
    assert content(root, 12) == b"other"


def test_files_that_are_equal_change_places_unnoticed_and_it_is_said_so(root):
    (root / "step-00000012" / "rank1.bin").write_bytes(DATA)
    assert all(item.unchanged for item in apply(parse("swap newest/rank0.bin with rank1.bin"), root))


def test_a_file_is_replaced_by_the_one_of_its_name_of_the_checkpoint_before(root):
    for step in (4, 8, 12):
        (root / f"step-{step:08d}" / "rank0.bin").write_bytes(b"%d" % step)
    (root / "step-00000012" / "alone.bin").write_bytes(b"alone")
    (hit,) = apply(parse("replace newest/*.bin from older"), root)
    assert (hit.path, hit.entry.number, hit.unchanged) == ("step-00000012/rank0.bin", 12, False)
    assert [content(root, step) for step in (4, 8, 12)] == [b"4", b"8", b"8"]
    assert content(root, 12, "alone.bin") == b"alone"
    apply(parse("replace every/rank0.bin from older"), root)
    assert [content(root, step) for step in (4, 8, 12)] == [b"4", b"4", b"8"]


def test_a_checkpoint_that_is_one_file_is_replaced_whole(tmp_path):
    for step in (4, 8):
        (tmp_path / f"step-{step:08d}.pt").write_bytes(b"%d" % step)
    (hit,) = apply(parse("replace newest from older"), tmp_path)
    assert (hit.path, hit.unchanged) == ("step-00000008.pt", False)
    assert (tmp_path / "step-00000008.pt").read_bytes() == b"4"
    assert apply(parse("replace older from older"), tmp_path) == []  # there is none before it


def test_nothing_is_taken_from_outside_of_the_directory(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "precious"
    outside.write_bytes(b"secret")
    (root / "step-00000008" / "rank0.bin").unlink()
    (root / "step-00000008" / "rank0.bin").symlink_to(outside)
    with pytest.raises(UsageError, match="leads out of the checkpoint directory"):
        apply(parse("replace newest/rank0.bin from older"), root)
    assert content(root, 12) == DATA


@pytest.mark.parametrize("sentence", ["flip newest/*.bin at byte 100", "truncate newest/*.bin to byte 100"])
def test_a_place_that_the_file_does_not_have_is_left_alone_and_said_so(root, sentence):
    (hit,) = apply(parse(sentence), root)
    assert hit.unchanged
    assert content(root, 12) == DATA


def test_an_empty_file_has_no_bit_to_flip(root):
    (root / "step-00000012" / "rank0.bin").write_bytes(b"")
    (hit,) = apply(parse("flip newest/*.bin at 50%"), root)
    assert hit.unchanged


@pytest.mark.parametrize(("choice", "steps"), [("newest", [12]), ("older", [8]), ("every", [4, 8, 12])])
def test_which_checkpoints_are_meant(root, choice, steps):
    hit = apply(parse(f"truncate {choice}/*.bin to byte 0"), root)
    assert [item.entry.number for item in hit] == steps


def test_tampering_hits_what_it_can_and_the_manifest_that_has_to_fit(root):
    shard = {"name": "rank0.bin", "size": 1, "sha256": "0" * 64}
    payload = pickle.dumps({"model": 1, "schema": "ckpt.v1"}, protocol=2)
    for step in (8, 12):
        (root / f"step-{step:08d}" / "manifest.json").write_text(json.dumps({"schema": "ckpt.v1", "shards": [shard]}))
        (root / f"step-{step:08d}" / "rank0.bin").write_bytes(payload)
    hit = apply(parse("tamper newest with hostile-pickle"), root)
    assert [item.path for item in hit] == ["step-00000012/rank0.bin", "step-00000012/manifest.json"]
    assert not any(item.unchanged for item in hit)
    assert json.loads(content(root, 12, "manifest.json"))["shards"][0]["size"] == len(content(root, 12)) > len(payload)
    assert content(root, 8) == payload
    assert not marker_of(root).exists()
    assert marker_of(root).parent == root.parent
    assert apply(parse("tamper newest/rank0.bin with duplicate-rank"), root) == []
    assert apply(parse("tamper every/rank1.bin with missing-key"), root) == []


def test_nothing_that_matches_is_nothing_hit(root):
    assert apply(parse("delete newest/*.pt"), root) == []


def test_a_link_out_of_the_directory_is_refused_before_anything_is_damaged(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "precious"
    outside.write_bytes(DATA)
    (root / "step-00000012" / "rank1.bin").symlink_to(outside)
    with pytest.raises(UsageError, match="leads out of the checkpoint directory"):
        apply(parse("truncate newest/*.bin to byte 0"), root)
    assert outside.read_bytes() == content(root, 12) == DATA
