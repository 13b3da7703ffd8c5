"""The format `sharded`: a directory in which every rank writes `rankN.bin`, and rank 0 commits `manifest.json`.

The float32 state (weights, buffers, moments) is one flat vector in name order; rank N holds the elements
[offset, offset + numel) of it, beside its own generators and a copy of everything small. By the offsets a checkpoint of
n ranks can be put together on m.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.reference.atomic import TEMPORARY_SUFFIX, atomic_save, decode_payload, read_bytes, write_payload
from harness.reference.comm import raise_together, rank0_decides
from harness.reference.config import TrainConfig
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError, mismatch
from harness.reference.formats import CheckpointHeader, check_names, checkpoint_name
from harness.reference.manifest import (
    Manifest,
    ShardRecord,
    check_digest,
    exchange_records,
    find_directories,
    make_manifest,
    prepare_directory,
    read_manifest,
    save_directory,
    write_manifest,
)
from harness.reference.rng import capture_rng_state
from harness.reference.state import (
    Training,
    apply_rng_states,
    apply_small_state,
    check_schema,
    load_model_state,
    load_optimizer_state_by_name,
    optimizer_state_by_name,
    small_state,
)

_KEYS = frozenset(
    {"schema", "rank", "offset", "numel", "flat", "layout", "total_numel", "other_tensors", "param_groups", "small", "rng"}
)


@dataclass(frozen=True)
class FlatState:
    """Named float32 tensors laid out in one vector.

    Attributes:
        layout: (name, shape, offset of the first element), in name order.
        numel: Elements in all.
    """

    layout: tuple[tuple[str, tuple[int, ...], int], ...]
    numel: int

    def slice_of(self, tensors: dict[str, Tensor], offset: int, numel: int) -> Tensor:
        """Return the elements [offset, offset + numel) as a tensor of its own, not a view.

        `torch.save` writes the whole storage behind a view.
        """
        pieces = []
        for name, _, start in self.layout:
            flat = tensors[name].detach().reshape(-1)
            first, last = max(offset, start), min(offset + numel, start + flat.numel())
            if first < last:
                pieces.append(flat[first - start : last - start].cpu())
        return torch.cat(pieces) if pieces else torch.empty(0)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut the whole vector into its tensors."""
        return {name: flat[start : start + torch.Size(shape).numel()].view(shape) for name, shape, start in self.layout}


def lay_out(tensors: dict[str, Tensor]) -> FlatState:
    """Give each tensor its place in the vector, in name order."""
    layout, offset = [], 0
    for name in sorted(tensors):
        layout.append((name, tuple(tensors[name].shape), offset))
        offset += tensors[name].numel()
    return FlatState(tuple(layout), offset)


def share_of(numel: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return (offset, numel) of a rank's share of a vector; shares differ by at most one element."""
    first, last = numel * rank // world_size, numel * (rank + 1) // world_size
    return first, last - first


def build_shard(training: Training) -> dict[str, Any]:
    """Return what this rank writes: its slice, its generators, and a copy of everything small."""
    named = optimizer_state_by_name(training.model, training.optimizer)
    tensors = {f"model.{name}": tensor for name, tensor in training.model.state_dict().items()}
    for name, values in named["state"].items():
        tensors.update({f"optimizer.{name}.{key}": tensor for key, tensor in values.items()})
    flat = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    state = lay_out(flat)
    offset, numel = share_of(state.numel, training.world.rank, training.world.world_size)
    return {
        "schema": small_state(training)["schema"],
        "rank": training.world.rank,
        "offset": offset,
        "numel": numel,
        "flat": state.slice_of(flat, offset, numel),
        "layout": state.layout,
        "total_numel": state.numel,
        "other_tensors": {name: tensor.cpu() for name, tensor in tensors.items() if name not in flat},
        "param_groups": named["param_groups"],
        "small": small_state(training),
        "rng": capture_rng_state(),
    }


def shard_name(rank: int) -> str:
    """Return the file name of a rank's shard."""
    return f"rank{rank}.bin"


def write_shard(shard: dict[str, Any], directory: Path) -> list[ShardRecord]:
    """Write one rank's file durably.

    Raises:
        CheckpointError: It could not be written; the text names the file and the system's error.
    """
    path = directory / shard_name(shard["rank"])
    try:
        size, sha256 = atomic_save(shard, path, path.with_name(path.name + TEMPORARY_SUFFIX))
    except OSError as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error
    return [ShardRecord(path.name, size, sha256, shard["offset"], shard["numel"])]


def load_sharded(src_dir: Path, expected_world_size: int | None) -> list[dict[str, Any]]:
    """Read and check every shard of a committed checkpoint; changes nothing.

    Args:
        src_dir: The checkpoint directory.
        expected_world_size: Number of ranks that must have saved it, or None to accept any (resharding).

    Returns:
        Every rank's shard, in rank order, as `build_shard` made it.

    Raises:
        CheckpointError: `world_size mismatch`, `sha256 mismatch on rank`, `shard file missing`, `unknown schema`,
            `unsafe shard path`, `duplicate rank`, `missing rank`, or slices that leave a gap.
        OSError: A file cannot be read.
    """
    manifest = read_manifest(src_dir)
    check_ranks(src_dir, manifest)
    if expected_world_size not in (None, manifest.world_size):
        found = f"{manifest.world_size} (resume on {manifest.world_size} ranks, or pass --reshard)"
        raise mismatch("world_size mismatch", src_dir / "manifest.json", expected_world_size, found)
    records = {record.name: record for record in manifest.shards}
    shards = []
    for rank in range(manifest.world_size):
        path, record = src_dir / shard_name(rank), records[shard_name(rank)]
        if not path.exists():
            raise mismatch("shard file missing", path, f"{record.size} bytes", "no file")
        data = read_bytes(path)
        check_digest(record, path, len(data), hashlib.sha256(data).hexdigest(), str(rank))
        shard = decode_payload(data, path)
        if not isinstance(shard, dict):
            raise mismatch("cannot decode", path, "a dict", type(shard).__name__)
        check_schema(shard.get("schema"), path)
        check_names(shard, _KEYS, path)
        shards.append(shard)
    check_slices(src_dir, shards)
    return shards


def check_ranks(src_dir: Path, manifest: Manifest) -> None:
    """Raise `CheckpointError` unless the manifest lists exactly one shard per rank."""
    path, names = src_dir / "manifest.json", {record.name for record in manifest.shards}
    expected = {shard_name(rank) for rank in range(manifest.world_size)}
    if expected - names:
        found = f"no {', '.join(sorted(expected - names))}"
        raise mismatch("missing rank", path, f"{manifest.world_size} shards, rank0.bin and on", found)
    if names - expected:
        raise mismatch("unknown rank", path, f"shards of {manifest.world_size} ranks", ", ".join(sorted(names - expected)))


def check_slices(src_dir: Path, shards: list[dict[str, Any]]) -> None:
    """Raise `CheckpointError` unless the slices are of one vector, and cover it once, in rank order."""
    end = 0
    for rank, shard in enumerate(shards):
        found = (shard["rank"], shard["offset"], shard["flat"].numel())
        if found != (rank, end, shard["numel"]):
            expected = f"rank {rank}, offset {end}, {shard['numel']} elements"
            raise mismatch("wrong slice", src_dir / shard_name(rank), expected, found)
        if (shard["layout"], shard["total_numel"]) != (shards[0]["layout"], shards[0]["total_numel"]):
            raise mismatch("wrong layout", src_dir / shard_name(rank), f"that of {shard_name(0)}", "another")
        end += shard["numel"]
    if end != shards[0]["total_numel"]:
        raise mismatch("wrong slice", src_dir, f"{shards[0]['total_numel']} elements", f"{end} over all shards")


def save_manifest_first(training: Training, path: Path) -> None:
    """The planted defect `manifest-first`: commit on checksums of what is still in memory, then write the shards."""
    shard = build_shard(training)
    size, sha256 = write_payload(shard, io.BytesIO())
    record = ShardRecord(shard_name(shard["rank"]), size, sha256, shard["offset"], shard["numel"])
    rank0_decides(lambda: prepare_directory(path))
    shards = exchange_records(path, lambda: [record])
    rank0_decides(lambda: write_manifest(path, make_manifest(training, shards)))
    exchange_records(path, lambda: write_shard(shard, path))


class ShardedFormat:
    """See the module.

    Args:
        reshard: Whether to load a checkpoint saved by another number of ranks.
        omitted: Parts that a planted defect does not restore.
        manifest_first: Whether that planted defect is on.
    """

    def __init__(self, reshard: bool, omitted: Collection[str], manifest_first: bool) -> None:
        self._reshard = reshard
        self._manifest_first = manifest_first
        self._omitted = omitted

    def path_for(self, parent: Path, batch: int) -> Path:
        """Return the directory of this batch."""
        return parent / checkpoint_name(batch)

    def find(self, parent: Path) -> list[Path]:
        """Return the committed directories, newest first."""
        return find_directories(parent)

    def verify(self, path: Path) -> CheckpointHeader:
        """Check every byte of every shard, and decode it: what its checksum vouches for may still not be a shard."""
        small = load_sharded(path, None)[0]["small"]
        return CheckpointHeader(small["state"]["batch"], small["state"]["step"], small["world_size"])

    def save(self, training: Training, path: Path) -> None:
        """Write this rank's shard and commit together."""
        if self._manifest_first:
            save_manifest_first(training, path)
            return
        save_directory(training, path, lambda: write_shard(build_shard(training), path))

    def load(self, training: Training, path: Path) -> str | None:
        """Put the state together from all shards and restore this rank."""
        error, warning = None, None
        try:
            shards = load_sharded(path, None if self._reshard else training.world.world_size)
            warning = self._apply(training, shards, path / shard_name(0))
        except (OSError, CheckpointError) as caught:
            error = caught
        raise_together(error, f"load {path.name}")
        return warning

    def _apply(self, training: Training, shards: list[dict[str, Any]], path: Path) -> str | None:
        first = shards[0]
        layout = FlatState(first["layout"], first["total_numel"])
        tensors = {**layout.unflatten(torch.cat([shard["flat"] for shard in shards])), **first["other_tensors"]}
        model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        load_model_state(training.model, model, path)
        if "optimizer" not in self._omitted:
            moments: dict[str, dict[str, Tensor]] = {}
            for full_name, tensor in tensors.items():
                if full_name.startswith("optimizer."):
                    name, key = full_name.removeprefix("optimizer.").rsplit(".", 1)
                    # A copy: on the CPU the optimizer keeps the very tensor, here a view into the whole vector.
                    moments.setdefault(name, {})[key] = tensor.clone()
            named = {"state": moments, "param_groups": first["param_groups"]}
            load_optimizer_state_by_name(training.model, training.optimizer, named, path)
        apply_small_state(training, first["small"], path, self._omitted)
        return apply_rng_states(training, [shard["rng"] for shard in shards], self._omitted)


def build_format(config: TrainConfig) -> ShardedFormat:
    """Return the format as the configuration wants it."""
    return ShardedFormat(config.reshard, omitted_parts(config.defect), "manifest-first" in config.defect)
