from __future__ import annotations

import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from harness.reference.dcp_metadata import METADATA_NAME, CarefulReader, check_metadata, check_tensors, read_metadata
from harness.reference.errors import CheckpointError

FILES = ("__0_0.distcp", METADATA_NAME)
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def saved(tmp_path):
    state = {"model": {"w": torch.arange(4.0)}, "optimizer": {"w": {"step": torch.ones(())}}}
    small = {"small": torch.zeros(3, dtype=torch.uint8), "rng_rank0": torch.zeros(2, dtype=torch.uint8)}
    dcp.save({**state, **small}, storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=1), no_dist=True)
    return tmp_path


class Hostile:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_what_dcp_writes_is_read_and_loaded(saved):
    check_metadata(saved, FILES, 1)
    check_tensors(read_metadata(saved).state_dict_metadata, {"model": {"w": 0}, "optimizer": {"w": {"step": 0}}}, saved)
    target = {"model": {"w": torch.zeros(4)}}
    dcp.load(target, storage_reader=CarefulReader(saved), no_dist=True)
    assert torch.equal(target["model"]["w"], torch.arange(4.0))


def test_members_of_enumerations_may_be_pickled_as_older_pythons_do(tmp_path, monkeypatch):
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    state = {"model": {"w": torch.arange(4.0)}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=1), no_dist=True)
    assert b"getattr" in (tmp_path / METADATA_NAME).read_bytes()
    assert read_metadata(tmp_path).state_dict_metadata["model.w"].properties.memory_format is torch.contiguous_format


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        (os.mkdir, ("executed",), r"posix\.mkdir"),
        (eval, ("__import__('os').mkdir('executed')",), r"builtins\.eval"),
        (getattr, ("text", "upper"), r"builtins\.getattr"),
        (torch.load, ("x",), r"torch\.serialization\.load"),
    ],
)
def test_code_is_named_and_not_run(saved, monkeypatch, call, arguments, named):
    monkeypatch.chdir(saved)
    (saved / METADATA_NAME).write_bytes(pickle.dumps(Hostile(call, *arguments)))
    with pytest.raises(CheckpointError, match=rf"code in a pickle: .*\.metadata: expected .*, found {named}"):
        read_metadata(saved)
    assert not (saved / "executed").exists()


@pytest.mark.parametrize("data", [b"", b"\x80", pickle.dumps(3), pickle.dumps({"a": 1}), b"garbage"])
def test_what_is_no_metadata_is_a_checkpoint_error(saved, data):
    (saved / METADATA_NAME).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"cannot decode: .*\.metadata: expected metadata .*, found "):
        read_metadata(saved)


def test_a_missing_file_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"file missing: .*\.metadata: expected a file, found none"):
        read_metadata(tmp_path)


def test_every_file_that_is_read_must_be_in_the_manifest(saved):
    with pytest.raises(CheckpointError, match=r"missing rank: .*manifest\.json: expected .*__0_0\.distcp.*, found no __0_0"):
        check_metadata(saved, [METADATA_NAME], 1)


def test_parts_are_those_of_the_ranks_that_saved(saved):
    with pytest.raises(CheckpointError, match=r"wrong parts: .*\.metadata: expected .*, found no rng_rank1"):
        check_metadata(saved, FILES, 2)
    with pytest.raises(CheckpointError, match=r"wrong parts: .*found unknown rng_rank0"):
        check_metadata(saved, FILES, 0)


def test_tensors_are_those_of_the_job(saved):
    found = read_metadata(saved).state_dict_metadata
    with pytest.raises(CheckpointError, match=r"wrong parts: .*found no model\.v, unknown model\.w"):
        check_tensors(found, {"model": {"v": 0}, "optimizer": {"w": {"step": 0}}}, saved)
