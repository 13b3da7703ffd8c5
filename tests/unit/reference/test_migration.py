from __future__ import annotations

import pytest
import torch

from harness.reference.atomic import atomic_save
from harness.reference.config import TrainConfig, parse_config
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.hooks import TrainingHooks
from harness.reference.loop import build_training
from harness.reference.migration import MIGRATIONS
from harness.reference.rng import capture_rng_state
from harness.reference.tensors import live_tensors
from harness.reference.train import main
from harness.reference.world import World


def old_payload(**changes) -> dict:
    """A checkpoint as ckpt.v0 had it, of a job of one rank after its third batch; written out by hand."""
    training = build_training(TrainConfig(), World())
    names = dict(training.model.named_parameters())
    torch.manual_seed(9)
    return {
        "schema": "ckpt.v0",
        "world_size": 1,
        "batch": 3,
        "step": 2,
        "epoch": 0,
        "batch_in_epoch": 3,
        "loss_history": [3.5, 3.4, 3.3],
        "job": {"seed": 0, "rng_scope": "rank", "global_batch": 12, "batches_per_epoch": 12, "precision": "fp32"},
        "scheduler": training.scheduler.state_dict() | {"last_epoch": 2, "_step_count": 3, "_last_lr": [1.5e-3]},
        "scaler": None,
        "model": {name: torch.randn(parameter.shape) for name, parameter in names.items()},
        "optimizer": {
            "state": {
                name: {
                    "step": torch.tensor(2.0),
                    "exp_avg": torch.randn(parameter.shape),
                    "exp_avg_sq": torch.rand(parameter.shape),
                }
                for name, parameter in names.items()
            },
            "param_groups": [{"lr": 1.5e-3, "initial_lr": 2e-3, "params": list(names)}],
        },
        "rng": [capture_rng_state()],
        **changes,
    }


def old_file(tmp_path, **changes):
    path = tmp_path / "step-00000003.pt"
    atomic_save(old_payload(**changes), path)
    return path


def test_a_file_of_the_old_schema_loads_whole(tmp_path):
    payload, path = old_payload(), old_file(tmp_path)
    training = build_training(TrainConfig(), World())
    assert load_format(TrainConfig()).load(training, path) is None
    live = live_tensors(training)
    for name, tensor in payload["model"].items():
        assert torch.equal(live[f"model.{name}"].values, tensor.view(-1))
    for name, state in payload["optimizer"]["state"].items():
        for key, tensor in state.items():
            assert torch.equal(live[f"optimizer.{name}.{key}"].values, tensor.view(-1))
    state = training.state
    assert (state.batch, state.step, state.epoch, state.batch_in_epoch) == (3, 2, 0, 3)
    assert state.loss_history == [3.5, 3.4, 3.3]
    assert state.epoch_order is None
    assert state.amp.state_dict() == {"recent": [], "num_skipped": 0}
    assert training.optimizer.param_groups[0]["lr"] == 1.5e-3
    assert torch.equal(torch.get_rng_state(), payload["rng"][0]["torch"])


def test_the_noise_begins_alike_whenever_it_is_loaded(tmp_path):
    path, states = old_file(tmp_path), []
    for _ in range(2):
        training = build_training(TrainConfig(), World())
        fresh = training.noise.get_state()
        load_format(TrainConfig()).load(training, path)
        states.append(training.noise.get_state())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], fresh)


class Steps(TrainingHooks):
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.steps: list[int] = []

    def batch(self, report):
        self.batches.append(report.batch)
        self.steps.append(report.step)


def test_a_job_trains_on_from_the_old_schema_and_saves_in_the_new(tmp_path):
    old_file(tmp_path)
    arguments, seen = ["--out", str(tmp_path), "--steps", "6"], Steps()
    assert main(arguments, seen) == 0
    assert (seen.batches, seen.steps) == ([4, 5, 6], [3, 4, 5])
    assert torch.load(tmp_path / "step-00000006.pt", weights_only=True)["schema"] == "ckpt.v1"
    assert load_format(parse_config(arguments)).verify(tmp_path / "step-00000003.pt").step == 2


@pytest.mark.parametrize("schema", ["ckpt.v9", "ckpt.", "ckpt.v00"])
def test_an_unknown_schema_is_refused_with_the_known_ones_named(tmp_path, schema):
    path = old_file(tmp_path, schema=schema)
    with pytest.raises(CheckpointError, match=rf"unknown schema: .*expected ckpt\.v1, ckpt\.v0, found '{schema}'"):
        load_format(TrainConfig()).verify(path)


@pytest.mark.parametrize("schema", [None, 1, "other"])
def test_what_is_no_schema_of_ours_is_refused(tmp_path, schema):
    with pytest.raises(CheckpointError, match=r"unknown schema: .*step-00000003\.pt: expected ckpt\.v1"):
        load_format(TrainConfig()).verify(old_file(tmp_path, schema=schema))


def without(field: str) -> dict:
    payload = old_payload()
    del payload[field]
    return payload


@pytest.mark.parametrize(
    "field", ["step", "batch", "epoch", "batch_in_epoch", "loss_history", "job", "rng", "model", "optimizer", "scheduler"]
)
def test_an_old_file_without_one_of_its_fields_is_refused(tmp_path, field):
    path = tmp_path / "step-00000003.pt"
    atomic_save(without(field), path)
    training = build_training(TrainConfig(), World())
    before = {name: tensor.values.clone() for name, tensor in live_tensors(training).items()}
    with pytest.raises(CheckpointError, match=rf"(incomplete|wrong parts): .*step-00000003\.pt: .*{field}"):
        load_format(TrainConfig()).verify(path)
    with pytest.raises(CheckpointError, match=r"load step-00000003\.pt failed on rank 0"):
        load_format(TrainConfig()).load(training, path)
    assert all(torch.equal(tensor.values, before[name]) for name, tensor in live_tensors(training).items())


def test_there_is_a_way_from_every_known_schema():
    assert set(MIGRATIONS) == {"ckpt.v0"}
