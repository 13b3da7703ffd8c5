from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.loop import build_training
from harness.reference.safetensors_format import export_weights, read_weights
from harness.reference.tensors import live_tensors
from harness.reference.world import World


@pytest.fixture(params=["gpt", "mlp"])
def saved(request, tmp_path):
    config = TrainConfig(format="safetensors", model=request.param, ema=0.9)
    training, path = build_training(config, World()), tmp_path / "step-00000000"
    assert load_format(config).save(training, path)
    return config, training, path


def test_the_export_holds_exactly_the_tensors_of_the_model(saved):
    _, training, path = saved
    found, expected = load_file(path / "model.safetensors"), training.model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_everything_comes_back_from_the_two_files(saved):
    config, training, path = saved
    other = build_training(config, World())
    other.optimizer.param_groups[0]["lr"] = 0.5
    for tensor in live_tensors(other).values():
        tensor.values.fill_(7)
    load_format(config).load(other, path)
    expected = live_tensors(training)
    assert all(torch.equal(tensor.values, expected[name].values) for name, tensor in live_tensors(other).items())
    assert other.optimizer.param_groups[0]["lr"] == training.optimizer.param_groups[0]["lr"]


def test_the_rest_holds_no_weights_a_second_time(saved):
    _, _, path = saved
    rest = torch.load(path / "training.bin", weights_only=True)
    assert "model" not in rest
    assert {"optimizer", "ema", "rng"} <= rest.keys()


@pytest.mark.parametrize("name", ["model.safetensors", "training.bin"])
def test_damage_to_either_file_is_found(saved, name):
    config, _, path = saved
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=rf"sha256 mismatch on rank 0: .*{name}"):
        load_format(config).verify(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"shard file missing: .*{name}"):
        load_format(config).verify(path)


def test_tensors_that_share_their_storage_are_exported(tmp_path):
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    tied = nn.Sequential(first, second).state_dict() | {"turned": torch.arange(6.0).view(2, 3).t()}
    size, _ = export_weights(tied, tmp_path / "model.safetensors")
    found = read_weights(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size == size
    assert all(torch.equal(found[name], tied[name]) for name in tied)


@pytest.mark.parametrize("data", [b"", b"x" * 7, b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{      }x"])
def test_what_is_no_export_is_refused(tmp_path, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"cannot decode: .*model\.safetensors: expected a safetensors file"):
        read_weights(path)
    path.unlink()
    with pytest.raises(CheckpointError, match="file missing"):
        read_weights(path)
