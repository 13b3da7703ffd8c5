"""DDP, ZeRO-1 and FSDP2 on real ranks: equal to training on one rank, and what each costs."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.optim import AdamW

from harness.reference import parallel
from harness.reference.amp import accumulate_gradients, take_step
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset
from harness.reference.loop import build_training
from harness.reference.recompute import MODES
from harness.reference.tensors import gather_whole, live_tensors
from harness.reference.world import World
from harness.reference.zero1 import BYTES_PER_PARAMETER, ShardedAdamW

PARALLELISMS = ("ddp", "zero1", "fsdp2")
QUIET = {"dropout": 0.0, "noise": 0.0}


def same(logits: torch.Tensor) -> torch.Tensor:
    return logits


def batches_of(config: TrainConfig, world: World, number: int) -> list[torch.Tensor]:
    dataset = SuccessorDataset(config.batches_per_epoch * config.global_batch, config.seed)
    return [tokens for _, tokens in EpochLoader(dataset, config, world).epoch(0, 0)][:number]


def train(config: TrainConfig, world: World, number: int):
    """Trains for some batches; returns the job and what became of each."""
    training = build_training(config, world)
    return training, [take_step(training, tokens, config.noise, same) for tokens in batches_of(config, world, number)]


def whole_of(training) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in gather_whole(live_tensors(training)).items()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# ---- ZeRO-1 ---------------------------------------------------------------------------------------------------------


def step_both(world: World, sizes: tuple[int, ...], steps: int) -> dict:
    """AdamW and its sharded form on the same gradients, which are equal on all ranks."""
    torch.manual_seed(0)
    plain = [nn.Parameter(torch.randn(size)) for size in sizes]
    split = [nn.Parameter(parameter.detach().clone()) for parameter in plain]
    optimizer = AdamW(plain, lr=0.1, fused=True)
    sharded = ShardedAdamW(split, world.rank, world.world_size, lr=0.1)
    for step in range(steps):
        for one, other in zip(plain, split, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for chosen in (optimizer, sharded):
            chosen.param_groups[0]["lr"] = 0.1 / (step + 1)
            chosen.step()
    moments = {
        (part.parameter, key): (part.start, values.clone()) for part in sharded.parts() for key, values in part.values.items()
    }
    expected = {(n, key): optimizer.state[p][key] for n, p in enumerate(plain) for key in ("exp_avg", "exp_avg_sq")}
    return {
        "equal": all(torch.allclose(one, other, rtol=1e-6, atol=1e-6) for one, other in zip(plain, split, strict=True)),
        "bytes": sharded.memory_bytes(),
        "steps": float(sharded.step_count),
        "moments": moments,
        "expected": expected,
    }


@pytest.mark.parametrize(
    ("sizes", "world_size"),
    [((12,), 2), ((5, 7, 1), 2), ((5, 3, 1), 4), ((1, 1, 1, 1, 1), 3), ((2,), 4), ((3, 2), 4), ((17, 4), 1)],
)
def test_zero1_is_adamw_at_an_nth_of_its_memory(ranks, sizes, world_size):
    results = ranks.run(step_both, world_size, sizes, 3)
    total = sum(sizes)
    share = math.ceil(total / world_size)
    assert BYTES_PER_PARAMETER == 12
    for rank, result in enumerate(results):
        held = max(0, min(share, total - rank * share))  # the last ranks may have less, or nothing
        assert result["bytes"] == 12 * held
        assert result["equal"]
        assert result["steps"] == 3.0
    assert results[0]["bytes"] == 12 * share
    assert sum(result["bytes"] for result in results) == 12 * total
    for name, expected in results[0]["expected"].items():
        times = torch.zeros_like(expected)
        for result in results:
            start, values = result["moments"][name]
            times[start : start + values.numel()] += 1
            assert torch.allclose(values, expected[start : start + values.numel()], rtol=1e-6, atol=1e-9)
        assert torch.equal(times, torch.ones_like(expected)), name


def train_and_measure(world: World, config: TrainConfig, number: int) -> dict:
    training, outcomes = train(config, world, number)
    found = {"losses": [outcome.global_loss for outcome in outcomes], "norms": [outcome.grad_norm for outcome in outcomes]}
    found["state"] = whole_of(training)
    if isinstance(training.optimizer, ShardedAdamW):
        found["bytes"] = training.optimizer.memory_bytes()
        found["parameters"] = sum(parameter.numel() for parameter in training.model.parameters())
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_three_train_as_one_rank_does(ranks, world_size):
    config = {"rng_scope": "global", "ema": 0.9}
    alone = train_and_measure(World(), TrainConfig(**config), 6)
    results = {
        name: ranks.run(train_and_measure, world_size, TrainConfig(parallelism=name, **config), 6) for name in PARALLELISMS
    }
    for found in results.values():
        assert [rank["losses"] for rank in found[1:]] == [found[0]["losses"]] * (world_size - 1)
        assert [rank["norms"] for rank in found[1:]] == [found[0]["norms"]] * (world_size - 1)
        assert found[0]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert found[0]["norms"] == pytest.approx(alone["norms"], abs=1e-5)
        # Adam divides by the root of tiny squares, so a rounding error may become a visible part of a step.
        assert largest_difference(found[0]["state"], alone["state"]) < 1e-3
    # The sums over the ranks are the same bits. AdamW may round by one bit otherwise, where a vector register ends.
    assert results["ddp"][0]["losses"][:2] == results["zero1"][0]["losses"][:2]
    assert largest_difference(results["ddp"][0]["state"], results["zero1"][0]["state"]) < 1e-6
    held = [rank["bytes"] for rank in results["zero1"]]
    parameters = results["zero1"][0]["parameters"]
    assert held[:-1] == [12 * math.ceil(parameters / world_size)] * (world_size - 1)
    assert sum(held) == 12 * parameters


# ---- gradient accumulation ------------------------------------------------------------------------------------------


def counting_hook(calls: list[int]):
    original = parallel.average_in_rank_order

    @functools.wraps(original)
    def counting(group, bucket):
        calls.append(bucket.buffer().numel())
        return original(group, bucket)

    return counting


def count_exchanges(world: World, config: TrainConfig, steps: int) -> dict:
    """What the ranks exchange per step: elements of gradients by DDP's hook, and calls of FSDP2's reduce-scatter."""
    elements: list[int] = []
    scatters: list[int] = []
    parallel.average_in_rank_order = counting_hook(elements)
    original = _fsdp_param_group.foreach_reduce
    _fsdp_param_group.foreach_reduce = lambda *args, **kwargs: scatters.append(1) or original(*args, **kwargs)
    training = build_training(config, world)
    per_step = []
    for tokens in batches_of(config, world, steps):
        elements.clear()
        scatters.clear()
        take_step(training, tokens, 0.0, same)
        per_step.append((sum(elements), len(scatters)))
    return {"parameters": sum(parameter.numel() for parameter in training.model.parameters()), "per_step": per_step}


@pytest.mark.parametrize("parallelism", ["ddp", "zero1"])
def test_every_gradient_is_exchanged_once_a_step(ranks, parallelism):
    for accumulate in (1, 3):
        config = TrainConfig(parallelism=parallelism, accumulate=accumulate, **QUIET)
        for found in ranks.run(count_exchanges, 2, config, 3):
            assert found["per_step"] == [(found["parameters"], 0)] * 3


def test_fsdp2_scatters_once_a_step_for_each_of_its_parts(ranks):
    for accumulate in (1, 3):
        config = TrainConfig(parallelism="fsdp2", accumulate=accumulate, **QUIET)
        for found in ranks.run(count_exchanges, 2, config, 3):
            assert found["per_step"] == [(0, 3)] * 3  # two blocks, and what is around them


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_micro_batches_on_two_ranks_are_one_big_batch(ranks, parallelism):
    settings = {"parallelism": parallelism, **QUIET}
    configs = [TrainConfig(accumulate=accumulate, **settings) for accumulate in (1, 2, 3, 6)]
    for whole, *parts in ranks.run(losses_and_norms, 2, configs, 4):
        for losses, norms in parts:
            assert losses == pytest.approx(whole[0], abs=1e-6)
            assert norms == pytest.approx(whole[1], abs=1e-5)


def losses_and_norms(world: World, configs: list[TrainConfig], number: int) -> list[tuple[list[float], list[float]]]:
    """For each configuration."""
    runs = [train(config, world, number)[1] for config in configs]
    return [([one.global_loss for one in outcomes], [one.grad_norm for one in outcomes]) for outcomes in runs]


def gradients_of_each(world: World, configs: list[TrainConfig]) -> list[dict[str, torch.Tensor]]:
    return [first_gradients(world, config) for config in configs]


def first_gradients(world: World, config: TrainConfig) -> dict[str, torch.Tensor]:
    """The gradients of the first batch, whole."""
    training = build_training(config, world)
    accumulate_gradients(training, batches_of(config, world, 1)[0], config.noise, same)
    gradients = {name: parameter.grad for name, parameter in training.model.named_parameters()}
    return {n: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for n, g in gradients.items()}


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_gradients_of_micro_batches_add_up(ranks, parallelism):
    alone = first_gradients(World(), TrainConfig(**QUIET))
    configs = [TrainConfig(parallelism=parallelism, accumulate=accumulate, **QUIET) for accumulate in (1, 2, 6)]
    for rank in ranks.run(gradients_of_each, 2, configs):
        assert [largest_difference(found, alone) < 1e-6 for found in rank] == [True] * 3


# ---- recompute ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_recompute_changes_no_gradient_on_any_rank(ranks, parallelism):
    settings = {"parallelism": parallelism, "dropout": 0.3}
    configs = [TrainConfig(recompute=mode, **settings) for mode in MODES]
    for kept, *again in ranks.run(gradients_of_each, 2, configs):
        assert [largest_difference(found, kept) for found in again] == [0.0, 0.0]


# ---- clipping -------------------------------------------------------------------------------------------------------


def clip_whole_and_split(world: World, max_norm: float) -> dict:
    from harness.reference.amp import clip_global_l2_norm

    config = TrainConfig(parallelism="fsdp2", **QUIET)
    whole = [gradient.clone() for gradient in first_gradients(world, config).values()]
    training = build_training(config, world)
    accumulate_gradients(training, batches_of(config, world, 1)[0], 0.0, same)
    parameters = list(training.model.parameters())
    returned = clip_global_l2_norm(parameters, max_norm)
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in whole))
    factor = min(1.0, max_norm / norm)
    clipped = [parameter.grad.full_tensor() for parameter in parameters]
    difference = max(float((one - factor * other).abs().max()) for one, other in zip(clipped, whole, strict=True))
    return {"returned": returned, "norm": norm, "difference": difference}


@pytest.mark.parametrize("max_norm", [0.1, 100.0])
def test_clipping_of_split_gradients_is_that_of_the_whole(ranks, max_norm):
    results = ranks.run(clip_whole_and_split, 3, max_norm)
    for found in results:
        assert found["returned"] == results[0]["returned"]
        assert found["returned"] == pytest.approx((found["norm"], min(max_norm, found["norm"])), rel=1e-5)
        assert found["difference"] < 1e-6


def test_a_group_of_ranks_is_really_there(ranks):
    assert ranks.run(rank_and_size, 3) == [(0, 3), (1, 3), (2, 3)]


def rank_and_size(world: World) -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()
