"""Which checkpoint a job starts from: what is damaged is passed over, and what only could not be read is not called damaged."""

from __future__ import annotations

import errno
import os

import pytest

from harness.reference.checkpoint import CheckpointStore, find_newest_valid
from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError, RefusalError
from harness.reference.formats import FORMAT_MODULES, load_format
from harness.reference.loop import build_training
from harness.reference.manifest import read_manifest
from harness.reference.world import World


def save(parent, format, *batches, width=8):
    training = build_training(TrainConfig(format=format, width=width), World())
    checkpoint_format = load_format(training.config)
    for batch in batches:
        training.state.batch = training.state.step = batch
        checkpoint_format.save(training, checkpoint_format.path_for(parent, batch))
    return checkpoint_format


@pytest.mark.parametrize(("there", "mine"), [("single", "sharded"), ("sharded", "single"), ("dcp", "single")])
def test_checkpoints_of_another_format_are_not_trained_beside(tmp_path, there, mine):
    save(tmp_path, there, 4, 8)
    with pytest.raises(RefusalError, match=r"another format: .*expected none, found step-00000004.*, step-00000008"):
        find_newest_valid(load_format(TrainConfig(format=mine)), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_does_not_read_is_no_damage(tmp_path, monkeypatch):
    checkpoint_format = save(tmp_path, "sharded", 4, 8)

    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(checkpoint_format, "verify", broken)
    with pytest.raises(RefusalError, match=r"cannot read .*step-00000008.*Input/output error.*nothing was changed"):
        find_newest_valid(checkpoint_format, tmp_path)
    monkeypatch.undo()
    assert find_newest_valid(checkpoint_format, tmp_path).path == tmp_path / "step-00000008"


@pytest.mark.parametrize(
    "content", ["[" * 200_000, '{"schema": "ckpt.v1", "world_size": Infinity, "step": 1, "batch": 8, "shards": []}']
)
def test_a_manifest_that_python_cannot_read_is_passed_over(tmp_path, content):
    checkpoint_format = save(tmp_path, "sharded", 4, 8)
    (tmp_path / "step-00000008" / "manifest.json").write_text(content)
    found = find_newest_valid(checkpoint_format, tmp_path)
    assert found.path == tmp_path / "step-00000004"
    assert [one.path for one in found.skipped] == ["step-00000008"]


@pytest.mark.parametrize("format", FORMAT_MODULES)
def test_a_newest_one_of_another_model_is_refused_although_an_older_one_would_fit(tmp_path, format):
    save(tmp_path, format, 4).finish(wait=True)
    save(tmp_path, format, 8, width=16).finish(wait=True)
    before = sorted(tmp_path.rglob("*"))
    config = TrainConfig(format=format, width=8, out=tmp_path)
    store = CheckpointStore(load_format(config), tmp_path, keep_last=3)
    with pytest.raises(RefusalError, match=r"step-00000008"):
        store.resume(build_training(config, World()))
    assert sorted(tmp_path.rglob("*")) == before


def test_shards_of_different_models_are_refused_and_not_passed_over(tmp_path, monkeypatch):
    checkpoint_format = save(tmp_path, "sharded", 4, 8)

    def of_two(path):
        raise RefusalError(f"wrong layout: {path}/rank1.bin: expected that of rank0.bin, found another")

    monkeypatch.setattr(checkpoint_format, "verify", of_two)
    with pytest.raises(RefusalError, match=r"^wrong layout: .*step-00000008/rank1\.bin"):
        find_newest_valid(checkpoint_format, tmp_path)


def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(CheckpointError, match="expected a regular file"):
        read_manifest(tmp_path)
