from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import AdamW

from harness.reference import tensors as module
from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError
from harness.reference.loop import build_training
from harness.reference.tensors import Filler, LocalTensor, Piece, check_layout, gather_whole, live_tensors, own_pieces
from harness.reference.world import World
from harness.reference.zero1 import ShardedAdamW

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def split(shapes: list[tuple[int, ...]], kind: str, rank: int, world_size: int) -> dict[str, LocalTensor]:
    """What a rank would hold of tensors whose elements are numbered through."""
    total = sum(math.prod(shape) for shape in shapes)
    share = -(-total // world_size)
    found, begin = {}, 0
    for number, shape in enumerate(shapes):
        numel = math.prod(shape)
        low, high = 0, numel
        if kind == "zero1":
            low, high = (min(max(edge - begin, 0), numel) for edge in (rank * share, (rank + 1) * share))
        elif kind == "fsdp2" and shape:
            rows = -(-shape[0] // world_size)
            low, high = (min(edge * rows, shape[0]) * math.prod(shape[1:]) for edge in (rank, rank + 1))
        found[f"t{number}"] = LocalTensor(shape, low, torch.arange(begin + low, begin + high, dtype=torch.float32))
        begin += numel
    return found


@settings(deadline=None)
@given(
    SHAPES,
    st.sampled_from(["ddp", "zero1", "fsdp2"]),
    st.integers(1, 4),
    st.sampled_from(["ddp", "zero1", "fsdp2"]),
    st.integers(1, 4),
)
def test_any_split_is_written_once_and_read_into_any_other(shapes, kind, world_size, other_kind, other_world_size):
    ranks = [split(shapes, kind, rank, world_size) for rank in range(world_size)]
    told = [[name for name, tensor in rank.items() if not tensor.is_whole] for rank in ranks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "gather_values", lambda _: told)
        pieces = [piece for rank, live in enumerate(ranks) for piece in own_pieces(live, rank, world_size)]
    written = sorted(value for piece in pieces for value in piece.values.tolist())
    assert written == list(range(sum(math.prod(shape) for shape in shapes)))
    assert all(piece.values.numel() for piece in pieces)
    for rank in range(other_world_size):
        expected = split(shapes, other_kind, rank, other_world_size)
        found = {n: LocalTensor(t.shape, t.start, torch.full_like(t.values, -1)) for n, t in expected.items()}
        filler = Filler(found, "file")
        filler.fill(pieces)
        filler.finish()
        assert all(torch.equal(found[name].values, tensor.values) for name, tensor in expected.items())


def vector(numel: int) -> dict[str, LocalTensor]:
    return {"a": LocalTensor((numel,), 0, torch.zeros(numel))}


@pytest.mark.parametrize(
    ("runs", "text"), [([(0, 4)], "a by 6"), ([(0, 4), (5, 5)], "a by 1"), ([(0, 6), (4, 6)], "a by -2"), ([], "a by 10")]
)
def test_holes_and_overlaps_are_found(runs, text):
    filler = Filler(vector(10), "file")
    filler.fill(Piece("a", start, torch.ones(numel)) for start, numel in runs)
    with pytest.raises(CheckpointError, match=f"wrong slice: file: .*{text}"):
        filler.finish()


def test_names_that_this_rank_does_not_have_are_passed_over():
    live = vector(2)
    filler = Filler(live, "file")
    filler.fill([Piece("b", 0, torch.ones(2)), Piece("a", 0, torch.ones(2))])
    filler.finish()
    assert live["a"].values.tolist() == [1, 1]


def test_filling_writes_into_the_live_tensors():
    training = build_training(TrainConfig(model="mlp", ema=0.9), World())
    live = live_tensors(training)
    filler = Filler(live, "file")
    filler.fill(Piece(name, 0, torch.full_like(tensor.values, 3)) for name, tensor in live.items())
    filler.finish()
    everything = [*training.model.parameters(), *training.model.buffers(), *training.ema.tensors.values()]
    everything += [tensor for state in training.optimizer.state.values() for tensor in state.values()]
    assert len(everything) == len(live)
    assert all(torch.equal(tensor, torch.full_like(tensor, 3)) for tensor in everything)


def test_every_difference_of_layouts_is_named():
    expected = {name: LocalTensor((2, 3), 0, torch.zeros(6)) for name in ("a", "b", "c")}
    check_layout(expected, {"a": (2, 3), "b": (2, 3), "c": (2, 3)}, "file")
    with pytest.raises(CheckpointError) as caught:
        check_layout(expected, {"b": (3, 2), "c": (2, 3), "d": (1,)}, "file")
    assert str(caught.value).startswith(
        "tensors differ: file: expected the 3 of this job, found no a, unexpected d, b of shape (3, 2)"
    )
    assert "instead of (2, 3)" in str(caught.value)


def test_on_one_rank_the_whole_is_what_is_there():
    training = build_training(TrainConfig(model="mlp", ema=0.9), World())
    whole = gather_whole(live_tensors(training))
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(whole[f"model.{name}"], tensor)
        assert whole[f"model.{name}"].shape == tensor.shape
    assert {f"ema.{name}" for name in training.ema.tensors} <= whole.keys()


@settings(deadline=None, max_examples=25)  # the first optimizer of a process imports for seconds
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_the_parts_of_zero1_cover_every_parameter_once(sizes, world_size):
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    counted = [{key: torch.zeros(size) for key in ("exp_avg", "exp_avg_sq")} for size in sizes]
    held = []
    for rank in range(world_size):
        optimizer = ShardedAdamW(parameters, rank, world_size, lr=0.1)
        held.append(optimizer.memory_bytes())
        for part, key in itertools.product(optimizer.parts(), ("exp_avg", "exp_avg_sq")):
            assert part.shape == (sizes[part.parameter],)
            counted[part.parameter][key][part.start : part.start + part.values[key].numel()] += 1
    assert all(torch.equal(times, torch.ones_like(times)) for keys in counted for times in keys.values())
    assert held[0] == 12 * math.ceil(sum(sizes) / world_size)
    assert sum(held) == 12 * sum(sizes)


def test_zero1_on_one_rank_follows_adamw_and_its_schedule():
    torch.manual_seed(0)
    plain = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(2, 3))]
    split_ones = [nn.Parameter(parameter.detach().clone()) for parameter in plain]
    optimizers = [AdamW(plain, lr=0.1, weight_decay=0.2), ShardedAdamW(split_ones, 0, 1, lr=0.1, weight_decay=0.2)]
    for step in range(4):
        for one, other in zip(plain, split_ones, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            optimizer.step()
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(plain, split_ones, strict=True))
    assert optimizers[1].step_count == 4


def test_zero1_takes_over_weights_that_were_loaded():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = ShardedAdamW([parameter], 0, 1, lr=0.0)
    with torch.no_grad():
        parameter.fill_(5)
    optimizer.adopt_weights()
    parameter.grad = torch.zeros(3)
    optimizer.step()
    assert parameter.tolist() == [5, 5, 5]
