from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from harness.reference.checkpoint import find_newest_valid
from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError, RefusalError
from harness.reference.formats import load_format
from harness.reference.loop import build_training
from harness.reference.state import apply_small_state, create_optimizer_state, small_state
from harness.reference.tensors import (
    Filler,
    Piece,
    check_layout,
    group_options,
    live_tensors,
    load_group_options,
    optimizer_tensors,
    parameter_names,
)
from harness.reference.world import World


def two_layers():
    return nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))


def stepped(model: nn.Module, optimizer: AdamW) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()


def test_moments_follow_their_parameter_when_the_order_changes():
    model = two_layers()
    optimizer = AdamW(model.parameters(), lr=0.1)
    stepped(model, optimizer)
    other = AdamW(list(model.parameters())[::-1], lr=0.5)
    create_optimizer_state(other)
    filler = Filler(optimizer_tensors(model, other), "file")
    saved = optimizer_tensors(model, optimizer)
    filler.fill(Piece(name, 0, tensor.values) for name, tensor in saved.items())
    filler.finish()
    load_group_options(model, other, group_options(model, optimizer), "file")
    for parameter in model.parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(other.state[parameter][key], optimizer.state[parameter][key])
    first, second = model.parameters()
    assert not torch.equal(other.state[first]["exp_avg"], other.state[second]["exp_avg"])
    assert other.param_groups[0]["lr"] == 0.1
    assert list(other.param_groups[0]["params"]) == [second, first]


def test_other_parameters_are_refused():
    model = two_layers()
    optimizer = AdamW(model.parameters())
    options = group_options(model, optimizer)
    options[0]["params"] = ["0.weight"]
    with pytest.raises(CheckpointError, match=r"optimizer parameters differ: file: expected .*1\.weight.*found"):
        load_group_options(model, optimizer, options, "file")
    with pytest.raises(ValueError, match="1 of the optimizer's 1 parameters do not belong"):
        parameter_names(model, AdamW([nn.Parameter(torch.zeros(1))]))


def test_moments_made_in_advance_change_nothing():
    torch.manual_seed(0)
    first = two_layers()
    second = two_layers()
    second.load_state_dict(first.state_dict())
    plain, made = AdamW(first.parameters(), lr=0.1), AdamW(second.parameters(), lr=0.1)
    create_optimizer_state(made)
    for model, optimizer in ((first, plain), (second, made)):
        torch.manual_seed(1)
        stepped(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_model_of_another_shape_is_refused():
    training = build_training(TrainConfig(), World())
    other = live_tensors(build_training(TrainConfig(width=16), World()))
    before = {name: tensor.values.clone() for name, tensor in live_tensors(training).items()}
    with pytest.raises(
        CheckpointError, match=r"tensors differ: file: .*model\.head\.weight of shape \(32, 16\) instead of \(32, 32\)"
    ):
        check_layout(live_tensors(training), {name: tensor.shape for name, tensor in other.items()}, "file")
    assert all(torch.equal(before[name], tensor.values) for name, tensor in live_tensors(training).items())


def test_a_file_of_another_model_is_refused_before_anything_changes(tmp_path):
    config = TrainConfig(out=tmp_path)
    load_format(config).save(build_training(TrainConfig(width=16), World()), tmp_path / "step-00000000.pt")
    training = build_training(config, World())
    before = {name: tensor.values.clone() for name, tensor in live_tensors(training).items()}
    with pytest.raises(CheckpointError, match="tensors differ"):
        load_format(config).load(training, tmp_path / "step-00000000.pt")
    assert all(torch.equal(before[name], tensor.values) for name, tensor in live_tensors(training).items())


def test_another_job_or_schema_is_refused():
    training = build_training(TrainConfig(), World())
    small = small_state(training)
    with pytest.raises(CheckpointError, match=r"unknown schema: file: expected ckpt\.v1, found 'x'"):
        apply_small_state(training, small | {"schema": "x"}, "file")
    with pytest.raises(CheckpointError, match="other job: file"):
        apply_small_state(training, small | {"job": small["job"] | {"seed": 9}}, "file")


def test_the_scan_takes_the_newest_valid_one(tmp_path):
    config = TrainConfig(out=tmp_path)
    training = build_training(config, World())
    single = load_format(config)
    assert find_newest_valid(single, tmp_path / "none").path is None
    for batch in (4, 8, 12):
        training.state.batch = batch
        single.save(training, single.path_for(tmp_path, batch))
    (tmp_path / "step-00000012.pt").write_bytes(b"")
    scan = find_newest_valid(single, tmp_path)
    assert scan.path == tmp_path / "step-00000008.pt"
    assert [skipped.path for skipped in scan.skipped] == ["step-00000012.pt"]
    (tmp_path / "step-00000004.pt").rename(tmp_path / "step-00000016.pt")
    (tmp_path / "step-00000008.pt").unlink()
    with pytest.raises(
        RefusalError, match=r"no valid checkpoint among 2 .*step mismatch: .*batch 16 as in the name.*found batch 4"
    ):
        find_newest_valid(single, tmp_path)
