from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from harness.reference.rng import RowDraws, capture_rng_state, derive_seed, pack, restore_rng_state, seed_everything, unpack


def draw():
    return (random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist())


def test_restore_continues_every_generator():
    seed_everything(3)
    draw()
    random.gauss(0, 1)  # leaves half of a pair behind, which belongs to the state
    state = capture_rng_state()
    first = draw()
    restore_rng_state(state)
    assert draw() == first


def test_capture_draws_nothing():
    seed_everything(3)
    first = draw()
    seed_everything(3)
    capture_rng_state()
    assert draw() == first


def test_the_state_loads_without_code():
    seed_everything(4)
    buffer = io.BytesIO()
    torch.save(capture_rng_state(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    first = draw()
    restore_rng_state(state)
    assert draw() == first


def test_more_cuda_generators_than_devices_are_refused():
    state = capture_rng_state() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 99}
    with pytest.raises(ValueError, match="99 CUDA generators"):
        restore_rng_state(state)


def test_pack_and_unpack():
    value = {"a": [1, 2.5, None, "x"], "b": torch.arange(3)}
    packed = pack(value)
    assert packed.dtype == torch.uint8
    assert packed.dim() == 1
    found = unpack(packed)
    assert found["a"] == value["a"]
    assert torch.equal(found["b"], value["b"])


def test_derived_seeds_differ():
    assert len({derive_seed(0, step, rank) for step in range(20) for rank in range(8)}) == 160


def test_shared_draws_do_not_depend_on_the_number_of_ranks():
    whole = drawn(RowDraws(0, 1, shared=True, noise=torch.Generator()), 12)
    for world_size in (2, 3, 4):
        for rank in range(world_size):
            own = drawn(RowDraws(rank, world_size, shared=True, noise=torch.Generator()), 12 // world_size)
            assert all(torch.equal(part, all_rows[rank::world_size]) for part, all_rows in zip(own, whole, strict=True))


def drawn(draws: RowDraws, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    draws.noise.manual_seed(2)
    shape, device = torch.Size([rows, 5]), torch.device("cpu")
    return draws.uniform(shape, device), draws.normal(shape, device)


def test_own_draws_are_for_own_rows_only():
    expected = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    draws = RowDraws(1, 4, shared=False, noise=torch.Generator().manual_seed(1))
    assert torch.equal(draws.normal(torch.Size([3, 2]), torch.device("cpu")), expected)
    torch.manual_seed(1)
    expected = torch.rand(3, 2)
    torch.manual_seed(1)
    assert torch.equal(draws.uniform(torch.Size([3, 2]), torch.device("cpu")), expected)


def test_the_noise_moves_no_global_generator():
    before = torch.get_rng_state()
    RowDraws(0, 1, shared=False, noise=torch.Generator()).normal(torch.Size([3, 2]), torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
