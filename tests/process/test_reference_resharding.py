"""A checkpoint of n ranks, split one way, loaded on m ranks that are split another way: every bit of every tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_reference_parallel import batches_of, same, whole_of

from harness.oracle.whole import views
from harness.probe.digest import components_of
from harness.probe.whole import whole_digests
from harness.reference.amp import take_step
from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.loop import build_training
from harness.reference.tensors import live_tensors, own_pieces
from harness.reference.world import World

ANY_TO_ANY = ("sharded", "single", "safetensors")
SAVED_BY = {"ddp": 2, "zero1": 3, "fsdp2": 4}
LOADED_BY = {"ddp": 3, "zero1": 2, "fsdp2": 3}


def config_of(parallelism: str, name: str, out: Path) -> TrainConfig:
    return TrainConfig(
        out=out, format=name, parallelism=parallelism, model="mlp", ema=0.9, rng_scope="global", sampler="random", reshard=True
    )


def place(out: Path, parallelism: str, name: str) -> Path:
    return out / parallelism / name / ("step-00000002.pt" if name == "single" else "step-00000002")


def save_in_all_formats(world: World, parallelism: str, out: Path):
    """Trains two batches and saves; returns the whole tensors, the places of the elements that this rank would write, digests."""
    config = config_of(parallelism, "single", out)
    training = build_training(config, world)
    for tokens in batches_of(config, world, 2):
        take_step(training, tokens, 0.1, same)
    training.state.batch = 2
    for name in (*ANY_TO_ANY, "dcp"):
        path = place(out, parallelism, name)
        if world.rank == 0:
            path.parent.mkdir(parents=True)
        assert load_format(config_of(parallelism, name, out)).save(training, path)
    live = live_tensors(training)
    pieces = [(piece.name, piece.start, piece.values.numel()) for piece in own_pieces(live, world.rank, world.world_size)]
    return whole_of(training), pieces, whole_digests(components_of(training), shared_rng=training.config.rng_scope == "global")


def load_each(world: World, parallelism: str, out: Path, sources: list[tuple[str, str]]):
    """Loads each (parallelism, format); returns the whole tensors, the weights of this rank if it has all of them, digests."""
    found = []
    training = build_training(config_of(parallelism, "single", out), world)
    for source, name in sources:
        live = live_tensors(training)
        for tensor in live.values():
            tensor.values.fill_(7)
        load_format(config_of(parallelism, name, out)).load(training, place(out, source, name))
        assert training.state.batch == 2
        digests = whole_digests(components_of(training), shared_rng=training.config.rng_scope == "global")
        own = {
            n: t.values.view(t.shape).clone() for n, t in live_tensors(training).items() if n.startswith("model.") and t.is_whole
        }
        if parallelism == "zero1":
            # Without a gradient the master copies go back into the model as they are, but for the decay of the weights.
            training.optimizer.param_groups[0]["lr"] = 0.0
            for parameter in training.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            moments = {n: t.clone() for n, t in whole_of(training).items() if n.startswith("optimizer.")}
            training.optimizer.step()
            found.append((whole_of(training) | moments, own, digests))
        else:
            found.append((whole_of(training), own, digests))
    return found


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    out = tmp_path_factory.mktemp("saved")
    return out, {name: ranks.run(save_in_all_formats, number, name, out) for name, number in SAVED_BY.items()}


def sources_for(parallelism: str) -> list[tuple[str, str]]:
    dcp = ["zero1"] if parallelism == "zero1" else ["ddp", "fsdp2"]
    # Its own kind first: the optimizer keeps options of another kind that its own does not have.
    kinds = sorted(SAVED_BY, key=lambda source: source != parallelism)
    return [(source, name) for source in kinds for name in ANY_TO_ANY] + [(source, "dcp") for source in dcp]


def seen_by_each(digests: list[dict[str, dict[str, str]]], alike: bool) -> dict[int, dict[str, str]]:
    """What each rank sees of the whole; of optimizers of two kinds, whose options have other names, all but the optimizer."""
    found = views(dict(enumerate(digests)), len(digests))
    return {rank: {n: d for n, d in view.items() if alike or n != "optimizer"} for rank, view in found.items()}


def check(results: list, saved: dict, sources: list[tuple[str, str]], parallelism: str) -> None:
    for number, (source, name) in enumerate(sources):
        expected = saved[source][0][0]
        found = results[0][number][0]
        assert found.keys() == expected.keys()
        assert [key for key in expected if not torch.equal(found[key], expected[key])] == [], (source, name)
        for rank in results:
            own = rank[number][1]
            assert [key for key in own if not torch.equal(own[key], expected[key])] == [], (source, name)
        alike = (source == "zero1") == (parallelism == "zero1") and (name, source) != ("dcp", "zero1")
        before = seen_by_each([rank[2] for rank in saved[source]], alike)
        after = seen_by_each([rank[number][2] for rank in results], alike)
        assert {"model", "buffers", "ema", "scheduler", "rng.torch"} <= before[0].keys()
        assert [view for view in (*before.values(), *after.values()) if view != before[0]] == [], (source, name)


@pytest.mark.parametrize("parallelism", LOADED_BY)
def test_every_bit_arrives_on_other_ranks(ranks, saved, parallelism):
    out, states = saved
    assert any(name.startswith("ema.") for name in states["fsdp2"][0][0])
    assert any(name.endswith("num_batches_tracked") for name in states["fsdp2"][0][0])
    sources = sources_for(parallelism)
    check(ranks.run(load_each, LOADED_BY[parallelism], parallelism, out, sources), states, sources, parallelism)


@pytest.mark.parametrize("parallelism", LOADED_BY)
def test_every_bit_arrives_on_one_rank(saved, parallelism):
    out, states = saved
    sources = sources_for(parallelism)
    check([load_each(World(), parallelism, out, sources)], states, sources, parallelism)


@pytest.mark.parametrize("parallelism", SAVED_BY)
def test_all_ranks_together_write_every_element_once(saved, parallelism):
    _, states = saved
    whole = states[parallelism][0][0]
    times = {name: torch.zeros(tensor.numel()) for name, tensor in whole.items()}
    for _, pieces, _ in states[parallelism]:
        for name, start, numel in pieces:
            assert start + numel <= whole[name].numel()
            times[name][start : start + numel] += 1
    assert [name for name in times if not torch.equal(times[name], torch.ones_like(times[name]))] == []


def test_dcp_keeps_the_split_moments_to_its_own_kind(saved):
    out, _ = saved
    training = build_training(config_of("ddp", "dcp", out), World())
    with pytest.raises(CheckpointError, match="load step-00000002 failed on rank 0"):
        load_format(config_of("ddp", "dcp", out)).load(training, place(out, "zero1", "dcp"))
