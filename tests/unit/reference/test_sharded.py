from __future__ import annotations

import dataclasses

import pytest
import torch

from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError, RefusalError
from harness.reference.loop import build_training
from harness.reference.manifest import header_of, make_manifest, read_manifest, write_manifest
from harness.reference.sharded import ShardedFormat, build_shard, load_sharded, write_shard
from harness.reference.tensors import Filler, LocalTensor, own_pieces, share_of
from harness.reference.world import World

NUM_RANKS = 3


def training_of(rank: int, world_size: int = NUM_RANKS):
    training = build_training(TrainConfig(format="sharded"), World(0, 0, 1))
    training.world = World(rank, rank, world_size)
    training.state.batch = 4
    return training


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "step-00000004"
    path.mkdir()
    records = [record for rank in range(NUM_RANKS) for record in write_shard(build_shard(training_of(rank)), path)]
    write_manifest(path, make_manifest(header_of(training_of(0)), records))
    return path


def change(path, **fields) -> None:
    manifest = read_manifest(path)
    (path / "manifest.json").unlink()
    write_manifest(path, dataclasses.replace(manifest, **fields))


def test_shares_cover_the_vector_once():
    for numel in (0, 1, 2, 7, 100):
        for world_size in (1, 2, 3, 8):
            end = 0
            for rank in range(world_size):
                offset, size = share_of(numel, rank, world_size)
                assert offset == end
                end += size
            assert end == numel


def test_slices_put_together_are_the_tensors():
    tensors = {"b": torch.randn(3, 4), "a": torch.randn(()), "c": torch.randn(5)}
    live = {name: LocalTensor(tuple(tensor.shape), 0, tensor.view(-1)) for name, tensor in tensors.items()}
    for world_size in (1, 2, 5, 18, 20):
        shares = [own_pieces(live, rank, world_size) for rank in range(world_size)]
        found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        filler = Filler({n: LocalTensor(tuple(t.shape), 0, t.view(-1)) for n, t in found.items()}, "file")
        for share in shares:
            filler.fill(share)
        filler.finish()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
        sizes = [sum(piece.values.numel() for piece in share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert list(dict.fromkeys(piece.name for share in shares for piece in share)) == ["a", "b", "c"]


def test_a_slice_is_saved_without_the_vector_behind_it():
    shard = build_shard(training_of(1))
    assert sum(values.untyped_storage().nbytes() for values in shard["values"]) == 4 * shard["numel"]
    whole = sum(tensor.numel() for tensor in training_of(1).model.parameters())
    assert shard["numel"] < whole * 3 / NUM_RANKS + len(shard["layout"])


def test_a_tensor_that_a_rank_writes_whole_is_not_copied_for_it():
    training = training_of(0, 1)
    addresses = {parameter.data_ptr() for parameter in training.model.parameters()}
    written = {values.data_ptr() for values in build_shard(training)["values"]}
    assert addresses <= written


def test_loads_on_the_same_world_size_and_on_any_if_asked(saved):
    assert [shard["rank"] for shard in load_sharded(saved, NUM_RANKS)] == [0, 1, 2]
    assert len(list(load_sharded(saved, None))) == NUM_RANKS


def test_the_state_comes_back_whole(saved):
    expected = training_of(0)
    found = build_training(TrainConfig(format="sharded"), World(0, 0, 1))
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.zero_()
    ShardedFormat(reshard=True, omitted=()).load(found, saved)
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor)
    assert found.state.batch == 4


def test_world_size_mismatch(saved):
    with pytest.raises(CheckpointError, match=r"world_size mismatch: .*manifest\.json: expected 2, found 3"):
        list(load_sharded(saved, 2))


def test_sha256_mismatch(saved):
    path = saved / "rank1.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"sha256 mismatch on rank 1: .*rank1\.bin: expected \d+ bytes .*found \d+ bytes"):
        list(load_sharded(saved, NUM_RANKS))


def test_shard_file_missing(saved):
    (saved / "rank2.bin").unlink()
    with pytest.raises(CheckpointError, match=r"shard file missing: .*rank2\.bin: expected \d+ bytes, found no file"):
        list(load_sharded(saved, NUM_RANKS))


def test_swapped_shards_are_noticed(saved):
    first, second = (saved / "rank0.bin").read_bytes(), (saved / "rank1.bin").read_bytes()
    (saved / "rank0.bin").write_bytes(second)
    (saved / "rank1.bin").write_bytes(first)
    with pytest.raises(CheckpointError, match="sha256 mismatch on rank 0"):
        list(load_sharded(saved, NUM_RANKS))


def rewrite(path, rank, **fields) -> None:
    """Changes entries of one shard (None: removes it), so that every checksum fits."""
    shard = {**torch.load(path / f"rank{rank}.bin", weights_only=True), **fields}
    records = list(read_manifest(path).shards)
    records[rank : rank + 1] = write_shard({key: value for key, value in shard.items() if value is not None}, path)
    change(path, shards=tuple(records))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"param_groups": None}, r"wrong parts: .*rank1\.bin: expected .*param_groups.*, found no param_groups"),
        ({"more": 1}, r"wrong parts: .*rank1\.bin: expected .*, found unknown more"),
        ({"schema": "other.v1"}, r"unknown schema: .*rank1\.bin: expected ckpt\.v1, found 'other\.v1'"),
        ({"layout": ()}, r"wrong layout: .*rank1\.bin: expected that of rank0\.bin, found another"),
    ],
)
def test_a_shard_that_is_none_is_noticed_before_anything_is_loaded(saved, fields, text):
    checkpoint_format = ShardedFormat(reshard=False, omitted=())
    assert checkpoint_format.verify(saved).batch == 4
    rewrite(saved, 1, **fields)
    with pytest.raises(CheckpointError, match=text) as caught:
        checkpoint_format.verify(saved)
    assert isinstance(caught.value, RefusalError) == ("layout" in fields)  # not damaged: of another model


def test_missing_and_unknown_ranks(saved):
    shards = read_manifest(saved).shards
    change(saved, shards=shards[:2])
    with pytest.raises(CheckpointError, match=r"missing rank: .*manifest\.json: .*found no rank2\.bin"):
        list(load_sharded(saved, NUM_RANKS))
    change(saved, shards=shards, world_size=2)
    with pytest.raises(CheckpointError, match=r"unknown rank: .*found rank2\.bin"):
        list(load_sharded(saved, 2))


def test_a_shard_listed_as_another_rank_is_noticed(saved):
    shards = read_manifest(saved).shards
    (saved / "rank0.bin").rename(saved / "x")
    (saved / "rank1.bin").rename(saved / "rank0.bin")
    (saved / "x").rename(saved / "rank1.bin")
    swapped = [dataclasses.replace(shards[1], name="rank0.bin"), dataclasses.replace(shards[0], name="rank1.bin"), shards[2]]
    change(saved, shards=tuple(swapped))
    with pytest.raises(CheckpointError, match=r"wrong slice: .*rank0\.bin: expected rank 0"):
        list(load_sharded(saved, NUM_RANKS))


def test_a_missing_manifest(saved):
    (saved / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="file missing"):
        list(load_sharded(saved, NUM_RANKS))
