from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

from harness.reference.amp import accumulate_gradients
from harness.reference.config import TrainConfig
from harness.reference.loop import build_training
from harness.reference.model import build_model
from harness.reference.recompute import MODES, run_again, run_layers
from harness.reference.rng import RowDraws
from harness.reference.world import World

WATCHED = ("blocks.0", "blocks.1", "blocks.0.qkv", "blocks.0.mlp")


def first_batch(mode: str) -> tuple[list[torch.Tensor], collections.Counter]:
    """Gradients of a batch under dropout, and how often each watched module ran."""
    training = build_training(TrainConfig(recompute=mode, dropout=0.5), World())
    ran: collections.Counter = collections.Counter()
    for name in WATCHED:
        training.model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: ran.update([name]))
    tokens = torch.randint(32, (12, 9), generator=torch.Generator().manual_seed(5))
    accumulate_gradients(training, tokens, 0.1, lambda logits: logits)
    return [parameter.grad for parameter in training.model.parameters()], ran


@pytest.mark.parametrize("mode", MODES)
def test_no_gradient_changes_and_the_work_is_done_again(mode):
    expected, _ = first_batch("none")
    found, ran = first_batch(mode)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    times = {"none": [1, 1, 1, 1], "full": [2, 2, 2, 2], "selective": [1, 1, 2, 1]}[mode]
    assert [ran[name] for name in WATCHED] == times


def test_the_generator_goes_on_as_without():
    states = []
    for mode in MODES:
        first_batch(mode)
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


@pytest.mark.parametrize("layers_per_segment", [1, 2, 3, 7])
def test_layers_in_segments_of_any_length(layers_per_segment):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(5)]
    hidden = torch.randn(3, 4)
    torch.manual_seed(1)
    expected = torch.autograd.grad(nn.Sequential(*layers)(hidden).sum(), layers[0][0].weight)[0]
    torch.manual_seed(1)
    found = torch.autograd.grad(run_layers(layers, hidden, layers_per_segment).sum(), layers[0][0].weight)[0]
    assert torch.equal(found, expected)
    assert float(expected.abs().sum()) > 0


def test_what_is_run_again_keeps_nothing():
    kept: list[torch.Size] = []
    weight = torch.randn(4, 4, requires_grad=True)

    def work(hidden):
        return torch.tanh(torch.tanh(hidden @ weight) @ weight)

    hidden = torch.randn(3, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda tensor: tensor):
        work(hidden)
        plain = len(kept)
        kept.clear()
        run_again(work, hidden)
    assert len(kept) < plain


def test_a_segment_has_at_least_one_layer():
    for number in (0, -1):
        with pytest.raises(ValueError, match=f"layers_per_segment must be at least 1, found {number}"):
            run_layers([nn.Linear(1, 1)], torch.zeros(1, 1), number)


def test_the_mlp_has_nothing_to_compute_again():
    draws = RowDraws(0, 1, shared=False, noise=torch.Generator())
    with pytest.raises(ValueError, match="recompute 'full' needs a model with layers to compute again"):
        build_model("mlp", 8, 0.0, draws, "full")
    with pytest.raises(ValueError, match="unknown model 'x'"):
        build_model("x", 8, 0.0, draws)
