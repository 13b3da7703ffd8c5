from __future__ import annotations

import math

import pytest
import torch

from harness.probe.digest import components_of, digest_components, digest_value
from harness.reference.config import TrainConfig
from harness.reference.loop import build_training
from harness.reference.world import World


def test_equal_values_have_equal_digests():
    value = {"b": [1, 2.5, None, "x", True], "a": torch.arange(4)}
    assert digest_value(value) == digest_value({"a": torch.arange(4), "b": [1, 2.5, None, "x", True]})
    assert len(digest_value(value)) == 16


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.tensor([0.0, 1e-45])),
        (torch.zeros(2), torch.tensor([0.0, -0.0])),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1.0}),
        ([1, [2]], [[1], 2]),
        (["ab"], ["a", "b"]),
        (None, 0),
        (True, 1),
        (1.0, math.nextafter(1.0, 2.0)),
    ],
)
def test_different_values_have_different_digests(one, other):
    assert digest_value(one) != digest_value(other)


def test_views_and_other_layouts_are_taken_by_value():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert digest_value(tensor.t().contiguous().t()) == digest_value(tensor)
    assert digest_value(torch.tensor(3.0)) == digest_value(torch.tensor([3.0, 1.0])[0])
    assert digest_value(torch.zeros(2, dtype=torch.bfloat16)) == digest_value(torch.zeros(2, dtype=torch.bfloat16))
    assert digest_value(torch.zeros(0)) == digest_value(torch.zeros(0))


def test_not_a_number_is_equal_to_itself():
    assert digest_value(math.nan) == digest_value(float("nan"))


def test_what_cannot_be_told_is_refused():
    with pytest.raises(TypeError, match="cannot digest a object"):
        digest_value([object()])


def test_a_job_has_the_components_of_the_contract_and_a_digest_changes_nothing():
    training = build_training(TrainConfig(precision="fp16"), World())
    first = digest_components(components_of(training))
    assert set(first) == {
        "model", "optimizer", "scheduler", "scaler", "rng.python", "rng.numpy", "rng.torch", "rng.noise", "data",
        "counters", "counters.loss_history",
    }  # fmt: skip
    assert digest_components(components_of(training)) == first
    assert "scaler" not in digest_components(components_of(build_training(TrainConfig(), World())))
    more = digest_components(components_of(build_training(TrainConfig(model="mlp", ema=0.9, precision="fp16"), World())))
    assert set(more) == {*first, "buffers", "ema"}


@pytest.mark.parametrize(
    "component",
    [
        "model",
        "buffers",
        "optimizer",
        "ema",
        "scheduler",
        "rng.torch",
        "rng.noise",
        "data",
        "counters",
        "counters.loss_history",
    ],
)
def test_each_change_shows_in_its_own_component(component):
    training = build_training(TrainConfig(model="mlp", ema=0.9), World())
    before = digest_components(components_of(training))
    parameter = next(training.model.parameters())
    changes = {
        "model": lambda: parameter.data.add_(1),
        "optimizer": lambda: training.optimizer.state[parameter]["exp_avg"].add_(1),
        "buffers": lambda: training.model.norm.running_mean.add_(1),
        "ema": lambda: training.ema.tensors["head.bias"].add_(1),
        "scheduler": lambda: setattr(training.scheduler, "last_epoch", 7),
        "rng.torch": lambda: torch.rand(1),
        "rng.noise": lambda: torch.rand(1, generator=training.noise),
        "data": lambda: setattr(training.state, "batch_in_epoch", 3),
        "counters": lambda: setattr(training.state, "step", 3),
        "counters.loss_history": lambda: training.state.loss_history.append(3.0),
    }
    changes[component]()
    after = digest_components(components_of(training))
    assert {name for name in before if before[name] != after[name]} == {component}


def test_the_order_of_the_data_and_the_skips_are_state_too():
    training = build_training(TrainConfig(sampler="random"), World())
    before = digest_components(components_of(training))
    training.state.epoch_order = torch.Generator().get_state()
    training.state.amp.record(skipped=True)
    after = digest_components(components_of(training))
    assert {name for name in before if before[name] != after[name]} == {"data", "counters"}


def test_swapped_moments_and_other_options_show():
    training = build_training(TrainConfig(), World())
    names = dict(training.model.named_parameters())
    one, other = names["blocks.0.projection.weight"], names["blocks.1.projection.weight"]
    state = training.optimizer.state
    state[one]["exp_avg"].fill_(1)
    before = digest_components(components_of(training))["optimizer"]
    state[one], state[other] = state[other], state[one]
    assert digest_components(components_of(training))["optimizer"] != before
    state[one], state[other] = state[other], state[one]
    assert digest_components(components_of(training))["optimizer"] == before
    training.optimizer.param_groups[0]["weight_decay"] = 0.5
    assert digest_components(components_of(training))["optimizer"] != before
