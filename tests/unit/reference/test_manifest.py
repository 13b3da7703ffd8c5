from __future__ import annotations

import json
import os

import pytest

from harness.reference.errors import CheckpointError
from harness.reference.manifest import (
    Manifest,
    ShardRecord,
    find_directories,
    prepare_directory,
    read_manifest,
    remove_directory,
    write_manifest,
)


def record(name: str) -> ShardRecord:
    return ShardRecord(name, 3, "0" * 64, 0, 1)


def commit(path, *names: str, batch: int = 4, world_size: int = 2):
    path.mkdir(parents=True, exist_ok=True)
    write_manifest(path, Manifest("ckpt.v1", world_size, 3, batch, tuple(record(name) for name in names)))


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "step-00000004"
    commit(path, "rank0.bin", "rank1.bin")
    found = read_manifest(path)
    assert (found.world_size, found.step, found.batch) == (2, 3, 4)
    assert found.shards == (record("rank0.bin"), record("rank1.bin"))
    assert json.loads((path / "manifest.json").read_text())["schema"] == "ckpt.v1"
    assert os.listdir(path) == ["manifest.json"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../rank0.bin", "..", "", "a/b", "a\\b", "a\0b"])
def test_unsafe_paths_are_refused(tmp_path, name):
    commit(tmp_path / "step-00000004", name)
    with pytest.raises(CheckpointError, match=r"unsafe shard path: .*manifest\.json: expected a plain file name, found"):
        read_manifest(tmp_path / "step-00000004")


def test_duplicates_are_refused(tmp_path):
    commit(tmp_path / "step-00000004", "rank0.bin", "rank0.bin")
    with pytest.raises(CheckpointError, match=r"duplicate rank: .*found rank0\.bin more than once"):
        read_manifest(tmp_path / "step-00000004")


@pytest.mark.parametrize("schema", ["ckpt.v2", "other", None, 7])
def test_unknown_schemas_are_refused(tmp_path, schema):
    path = tmp_path / "step-00000004"
    commit(path, "rank0.bin")
    found = json.loads((path / "manifest.json").read_text()) | {"schema": schema}
    (path / "manifest.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=r"unknown schema: .*manifest\.json: expected ckpt\.v1, found"):
        read_manifest(path)


def test_another_batch_than_in_the_name_is_refused(tmp_path):
    commit(tmp_path / "step-00000008", "rank0.bin", batch=4)
    with pytest.raises(CheckpointError, match=r"step mismatch: .*expected batch 8 as in the name, found batch 4"):
        read_manifest(tmp_path / "step-00000008")


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "step-00000004"
    commit(path, "rank0.bin")
    data = (path / "manifest.json").read_bytes()
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        (path / "manifest.json").write_bytes(bytes(damaged))
        with pytest.raises(CheckpointError):
            read_manifest(path)
    for size in range(len(data)):
        (path / "manifest.json").write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            read_manifest(path)


@pytest.mark.parametrize("text", ["[]", "7", "null", "{}", '{"schema": "ckpt.v1", "shards": [{"x": 1}]}'])
def test_other_json_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_only_committed_directories_are_found_newest_first(tmp_path):
    assert find_directories(tmp_path / "none") == []
    for batch in (4, 12, 8):
        commit(tmp_path / f"step-{batch:08d}", "rank0.bin", batch=batch)
    (tmp_path / "step-00000016").mkdir()
    (tmp_path / "step-x").mkdir()
    assert [path.name for path in find_directories(tmp_path)] == ["step-00000012", "step-00000008", "step-00000004"]


def test_a_committed_directory_is_not_written_into_again(tmp_path):
    path = tmp_path / "step-00000004"
    commit(path, "rank0.bin")
    with pytest.raises(CheckpointError, match="already committed"):
        prepare_directory(path)
    (path / "manifest.json").unlink()
    (path / "rank0.bin").touch()
    prepare_directory(path)
    assert os.listdir(path) == []


def test_the_manifest_is_removed_first(tmp_path, monkeypatch):
    path = tmp_path / "step-00000004"
    commit(path, "rank0.bin")
    (path / "rank0.bin").touch()
    removed = []
    unlink = type(path).unlink
    monkeypatch.setattr(type(path), "unlink", lambda self, **kw: (removed.append(self.name), unlink(self, **kw)))
    remove_directory(path)
    assert removed == ["manifest.json", "rank0.bin"]
    assert not path.exists()
