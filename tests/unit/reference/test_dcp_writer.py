from __future__ import annotations

import contextlib
import errno
import os

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystem

from harness.reference.config import TrainConfig
from harness.reference.dcp_writer import PlainFileSystem, system_error
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.loop import build_training
from harness.reference.world import World

# Of some hundred: those of the first archives, with the ends of each.
WRITES = 60


class Full:
    """A file whose `at`-th write finds the disk full."""

    def __init__(self, stream, at):
        self._stream, self._left = stream, at

    def write(self, data):
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._stream.write(data)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def fill(monkeypatch, at):
    plain = FileSystem.create_stream

    @contextlib.contextmanager
    def create_stream(self, path, mode):
        with plain(self, path, mode) as stream:
            yield Full(stream, at) if str(path).endswith(".distcp") else stream

    monkeypatch.setattr(FileSystem, "create_stream", create_stream)


def test_a_full_disk_is_named_whichever_write_finds_it(monkeypatch, tmp_path):
    config = TrainConfig(format="dcp", out=tmp_path, model="mlp", ema=0.9)
    training, own = build_training(config, World()), load_format(config)
    for at in range(1, WRITES):
        with monkeypatch.context() as patches:
            fill(patches, at)
            with pytest.raises(CheckpointError, match="No space left on device"):
                own.save(training, tmp_path / f"step-{at:08d}")


def test_other_errors_are_left_as_they_are(tmp_path):
    with pytest.raises(ValueError, match="mine"), PlainFileSystem().create_stream(tmp_path / "x", "wb"):
        raise ValueError("mine")
    with pytest.raises(FileNotFoundError), PlainFileSystem().create_stream(tmp_path / "no" / "x", "wb"):
        pass
    error = RuntimeError("unexpected pos")
    error.__context__ = torch.cuda.OutOfMemoryError("x")
    error.__context__.__context__ = error
    assert system_error(error) is None
