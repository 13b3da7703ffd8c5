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
from harness.reference.state import apply_small_state, check_job, create_optimizer_state, small_state
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
from harness.reference.train import DONE, REFUSED, main
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


OTHER_OPTIONS = {
    "noise": 0.25,
    "dropout": 0.2,
    "learning-rate": 0.5,
    "batches-per-epoch": 6,
    "global-batch": 24,
    "seed": 9,
    "warmup": 2,
    "precision": "bf16",
    "sampler": "random",
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_a_job_with_another_option_is_refused_by_its_name(tmp_path, capsys, name):
    job = ["--out", str(tmp_path), "--steps", "1", "--format", "sharded"]
    assert main(job) == DONE
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main([*job, f"--{name}", str(OTHER_OPTIONS[name])]) == REFUSED
    saved = getattr(TrainConfig(), name.replace("-", "_"))
    said = capsys.readouterr().err
    assert f"--{name} expected {saved!r} (saved with), found {OTHER_OPTIONS[name]!r} (started with)" in said
    assert said.count("(saved with)") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_options_that_the_checkpoint_says_nothing_of_are_accepted_and_unknown_ones_are_not():
    config = TrainConfig(noise=0.5)
    check_job(config, {"seed": 0, "sampler": "distributed"}, "file")
    with pytest.raises(CheckpointError, match=r"file: --colour expected 'red' \(saved with\), found 'no such option'"):
        check_job(config, {"colour": "red"}, "file")


@pytest.mark.parametrize("name", ["single", "sharded", "safetensors"])
def test_another_job_is_refused_before_anything_changes(tmp_path, name):
    config = TrainConfig(out=tmp_path, format=name)
    path = load_format(config).path_for(tmp_path, 0)
    assert load_format(config).save(build_training(config, World()), path)
    training = build_training(TrainConfig(out=tmp_path, format=name, seed=9), World())
    before = {n: tensor.values.clone() for n, tensor in live_tensors(training).items()}
    with pytest.raises(CheckpointError, match=r"other job: .*--seed expected 0"):
        load_format(config).load(training, path)
    assert all(torch.equal(before[n], tensor.values) for n, tensor in live_tensors(training).items())


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
