from __future__ import annotations

import itertools

import pytest
import torch

from harness.probe.digest import components_of
from harness.probe.whole import sum_of, whole_digests
from harness.reference.config import TrainConfig
from harness.reference.loop import build_training
from harness.reference.tensors import LocalTensor
from harness.reference.world import World


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_the_parts_of_a_tensor_add_up_to_the_whole_however_it_is_cut(dtype):
    values = torch.arange(24).to(dtype)
    whole = sum_of("a", LocalTensor((4, 6), 0, values))
    for cuts in ([0, 24], [0, 6, 24], [0, 1, 1, 23, 24]):
        parts = [LocalTensor((4, 6), low, values[low:high]) for low, high in itertools.pairwise(cuts)]
        assert sum(sum_of("a", part) for part in parts) % 2**64 == whole


def test_place_name_shape_dtype_and_every_bit_count():
    values = torch.arange(6.0)
    changed = values.clone()
    changed[3] = torch.nextafter(changed[3], torch.tensor(9.0))
    sums = {
        sum_of("a", LocalTensor((6,), 0, values)),
        sum_of("b", LocalTensor((6,), 0, values)),
        sum_of("a", LocalTensor((2, 3), 0, values)),
        sum_of("a", LocalTensor((6,), 0, values.double())),
        sum_of("a", LocalTensor((6,), 0, changed)),
        sum_of("a", LocalTensor((6,), 0, values.flip(0))),  # the same elements in other places
        sum_of("a", LocalTensor((6,), 0, torch.zeros(6))),
    }
    assert len(sums) == 7
    assert sum_of("a", LocalTensor((6,), 2, values[:0])) == 0


@pytest.mark.parametrize(
    "component",
    ["model", "buffers", "optimizer", "ema", "scheduler", "scaler", "data", "counters", "counters.loss_history", "rng.torch"],
)
def test_each_change_shows_in_its_own_component(component):
    training = build_training(TrainConfig(model="mlp", ema=0.9, precision="fp16", rng_scope="global"), World())
    before = whole_digests(components_of(training), shared_rng=training.config.rng_scope == "global")
    assert whole_digests(components_of(training), shared_rng=training.config.rng_scope == "global") == before
    assert before["own"] == {}
    parameter = next(training.model.parameters())
    changes = {
        "model": lambda: parameter.data.add_(1),
        "optimizer": lambda: training.optimizer.state[parameter]["exp_avg"].add_(1),
        "buffers": lambda: training.model.norm.running_mean.add_(1),
        "ema": lambda: training.ema.tensors["head.bias"].add_(1),
        "scheduler": lambda: setattr(training.scheduler, "last_epoch", 7),
        "scaler": lambda: training.scaler.load_state_dict({**training.scaler.state_dict(), "scale": 2.0}),
        "data": lambda: setattr(training.state, "batch_in_epoch", 3),
        "counters": lambda: setattr(training.state, "step", 3),
        "counters.loss_history": lambda: training.state.loss_history.append(3.0),
        "rng.torch": lambda: torch.rand(1),
    }
    changes[component]()
    after = whole_digests(components_of(training), shared_rng=training.config.rng_scope == "global")
    assert {name for name in before["common"] if before["common"][name] != after["common"][name]} == {component}


def test_streams_of_each_rank_are_left_out():
    found = whole_digests(components_of(build_training(TrainConfig(rng_scope="rank"), World())), shared_rng=False)["common"]
    assert not [name for name in found if name.startswith("rng")]
