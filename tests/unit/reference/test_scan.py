"""The scan of a checkpoint directory: every format is recognised, and what is corrupt is said."""

from __future__ import annotations

import pytest

from harness.reference.config import TrainConfig
from harness.reference.formats import FORMAT_MODULES, load_format
from harness.reference.loop import build_training
from harness.reference.scan import main, scan_checkpoints
from harness.reference.world import World


@pytest.fixture
def saved(tmp_path):
    """One checkpoint of each format, batches 1, 2, …"""
    for batch, name in enumerate(FORMAT_MODULES, 1):
        training = build_training(TrainConfig(format=name, width=8), World())
        training.state.batch = training.state.step = batch
        checkpoint_format = load_format(training.config)
        path = checkpoint_format.path_for(tmp_path, batch)
        checkpoint_format.save(training, path)
        checkpoint_format.finish(wait=True)
    return tmp_path


def test_whole_checkpoints_of_every_format_are_recognised(saved, capsys):
    assert [one.header.batch for one in scan_checkpoints(saved) if one.header] == [5, 4, 3, 2, 1]
    assert main([str(saved)]) == 0
    assert capsys.readouterr().out.count("ok  ") == 5


def test_each_corrupt_one_is_named_with_its_reason_and_left_alone(saved, capsys):
    data = [
        next(p for p in sorted(path.rglob("*")) if p.stat().st_size > 2000) if path.is_dir() else path for path in saved.iterdir()
    ]
    for file in data:
        file.write_bytes(file.read_bytes()[:-1])
    assert main([str(saved)]) == 1
    out = capsys.readouterr().out
    assert out.count("CORRUPT") == len(data) == 5
    assert all("expected" in line and "found" in line for line in out.splitlines())


def test_a_directory_without_a_manifest_was_never_committed(tmp_path, capsys):
    (tmp_path / "step-00000004").mkdir()
    assert main([str(tmp_path)]) == 0
    assert "never committed: step-00000004" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["/nowhere"], ["a", "b"]])
def test_wrong_usage_is_said(arguments, capsys):
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err
