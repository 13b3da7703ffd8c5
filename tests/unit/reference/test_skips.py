from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from harness.reference.amp import amp_dtype, has_non_finite_grad, take_step
from harness.reference.config import TrainConfig
from harness.reference.ema import WeightAverage
from harness.reference.formats import load_format
from harness.reference.loop import build_training
from harness.reference.skips import ALERT_RATE, WINDOW, AmpTrainState
from harness.reference.world import World


def recorded(*skipped: bool) -> AmpTrainState:
    state = AmpTrainState()
    for one in skipped:
        state.record(one)
    return state


def test_the_rate_is_that_of_the_last_batches():
    state = recorded(True, False, False, True)
    assert AmpTrainState().rolling_skip_rate() == 0.0
    assert state.rolling_skip_rate() == 0.5
    assert [state.rolling_skip_rate(window) for window in (1, 2, 3, 4)] == [1.0, 0.5, 1 / 3, 0.5]
    for window in (0, -1, WINDOW + 1):
        with pytest.raises(ValueError, match=f"window must lie within 1 … {WINDOW}, found {window}"):
            state.rolling_skip_rate(window)


def test_old_batches_leave_the_window_but_not_the_count():
    state = recorded(*[True] * 10, *[False] * WINDOW)
    assert state.rolling_skip_rate() == 0.0
    assert state.num_skipped == 10
    assert len(state.recent) == WINDOW


def test_more_than_one_in_twenty_is_an_alert():
    assert ALERT_RATE == 0.05
    assert recorded(*[True] * 19).alert() is None
    assert "100% of the last 20 batches were skipped" in recorded(*[True] * 20).alert()
    assert recorded(True, *[False] * 19).alert() is None
    assert "10% of the last 20" in recorded(True, True, *[False] * 18).alert()


def test_the_history_survives_a_round_trip():
    state, other = recorded(*[True, False] * 600), AmpTrainState()
    other.load_state_dict(state.state_dict())
    assert other.state_dict() == state.state_dict()
    other.record(True)
    assert len(other.recent) == WINDOW
    assert other.num_skipped == state.num_skipped + 1 == 601


def test_one_bad_gradient_is_enough():
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    assert not has_non_finite_grad(parameters)
    for parameter in parameters[:2]:
        parameter.grad = torch.full((3,), 3e38)
    assert not has_non_finite_grad(parameters)
    for bad in (math.inf, -math.inf, math.nan):
        parameters[1].grad = torch.tensor([0.0, bad, 0.0])
        assert has_non_finite_grad(parameters)


def test_the_type_to_compute_in():
    assert (amp_dtype("cpu"), amp_dtype("cuda")) == (torch.bfloat16, torch.float16)


def bad_loss(logits: torch.Tensor) -> torch.Tensor:
    return logits * math.nan


def bad_gradient(logits: torch.Tensor) -> torch.Tensor:
    logits.register_hook(lambda gradient: gradient * math.inf)
    return logits


def tokens() -> torch.Tensor:
    return torch.randint(32, (12, 9), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("change", "reason"), [(bad_loss, "non_finite_loss"), (bad_gradient, "non_finite_grad")])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_skipped_batch_moves_neither_buffers_nor_average(change, reason, accumulate):
    training = build_training(TrainConfig(model="mlp", ema=0.5, accumulate=accumulate), World())
    take_step(training, tokens(), 0.0, lambda logits: logits)
    state = {**training.model.state_dict(), **{f"ema.{n}": t for n, t in training.ema.tensors.items()}}
    before = {name: tensor.clone() for name, tensor in state.items()}
    assert take_step(training, tokens(), 0.0, change).reason == reason
    assert [name for name in state if not torch.equal(state[name], before[name])] == []
    assert take_step(training, tokens(), 0.0, lambda logits: logits).reason is None
    assert [name for name in state if torch.equal(state[name], before[name])] == []


def test_the_average_follows_the_weights():
    model = nn.Linear(2, 1)
    average = WeightAverage(model, 0.9)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(average.tensors[name], first[name]) for name in first)
    average.update()
    average.update()
    for name, start in first.items():
        assert torch.allclose(average.tensors[name], 0.81 * start + 0.19 * (start + 1))


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 2.0])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match="decay must lie between 0 and 1"):
        WeightAverage(nn.Linear(1, 1), decay)


def test_average_and_skips_survive_a_resume(tmp_path):
    config = TrainConfig(ema=0.9, out=tmp_path)
    training = build_training(config, World())
    for _ in range(3):
        take_step(training, tokens(), 0.0, lambda logits: logits)
    training.state.amp.record(True)
    path = tmp_path / "step-00000000.pt"
    load_format(config).save(training, path)
    resumed = build_training(config, World())
    weights = dict(training.model.named_parameters())
    assert all(not torch.equal(average, weights[name]) for name, average in training.ema.tensors.items())
    load_format(config).load(resumed, path)
    assert all(torch.equal(resumed.ema.tensors[name], average) for name, average in training.ema.tensors.items())
    assert resumed.state.amp.state_dict() == {"recent": [1], "num_skipped": 1}
