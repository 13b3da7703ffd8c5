"""The format `sharded`: a directory in which every rank writes `rankN.bin`, and rank 0 commits `manifest.json`.

A shard is a list of float32 vectors and of what they are: (tensor, first element, number of elements), beside the
rank's own generators and a copy of everything small. Nothing is gathered for a save. On load every rank reads the shards one
after the other and takes what it needs, so a checkpoint of n ranks can be put together on m, and one of DDP under FSDP2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.reference.atomic import TEMPORARY_SUFFIX, atomic_save, decode_payload, read_bytes
from harness.reference.comm import raise_together
from harness.reference.config import TrainConfig
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError, RefusalError, mismatch
from harness.reference.formats import CheckpointHeader, check_names
from harness.reference.manifest import (
    DirectoryFormat,
    Manifest,
    ShardRecord,
    check_digest,
    read_manifest,
    save_directory,
)
from harness.reference.payload import kept, settle
from harness.reference.state import (
    Training,
    apply_rng_states,
    apply_small_state,
    capture_rank_rng,
    check_job,
    check_schema,
    small_state,
)
from harness.reference.tensors import Filler, Piece, check_layout, group_options, live_tensors, own_pieces

KEYS = frozenset({"schema", "rank", "numel", "values", "pieces", "layout", "other_tensors", "param_groups", "small", "rng"})


def build_shard(training: Training) -> dict[str, Any]:
    """Return what this rank writes: its pieces, its generators, and a copy of everything small. Collective.

    `values` are the pieces' elements, the live tensors themselves where they are whole: nothing is copied for a save. A
    piece that is a view into something larger is copied, since `torch.save` writes the whole storage behind a view.
    """
    live = live_tensors(training)
    floats = {name: tensor for name, tensor in live.items() if tensor.values.dtype == torch.float32}
    pieces = own_pieces(floats, training.world.rank, training.world.world_size)
    return {
        "schema": small_state(training)["schema"],
        "rank": training.world.rank,
        "numel": sum(piece.values.numel() for piece in pieces),
        "values": [_alone(piece.values) for piece in pieces],
        "pieces": [(piece.name, piece.start, piece.values.numel()) for piece in pieces],
        "layout": {name: tensor.shape for name, tensor in live.items()},
        # Few and small (BatchNorm's counters): every rank keeps all of them.
        "other_tensors": {n: t.values.cpu().clone() for n, t in live.items() if n not in floats},
        "param_groups": group_options(training.model, training.optimizer),
        "small": small_state(training),
        "rng": capture_rank_rng(training),
    }


def _alone(values: Tensor) -> Tensor:
    values = values.cpu()
    return values if values.untyped_storage().nbytes() == values.nbytes else values.clone()


def pieces_of(shard: dict[str, Any]) -> Iterator[Piece]:
    """Yield the pieces of a shard."""
    for (name, start, _), values in zip(shard["pieces"], shard["values"], strict=True):
        yield Piece(name, start, values)
    for name, values in shard["other_tensors"].items():
        if shard["rank"] == 0:
            yield Piece(name, 0, values)


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
    return [ShardRecord(path.name, size, sha256, numel=shard["numel"])]


def save_sharded(per_rank_state: dict[str, Any], dest_dir: Path, step: int) -> None:
    """Save a directory of shards and commit it. Collective.

    Args:
        per_rank_state: This rank's shard: `rank`, `numel` and whatever else it is to hold, as `build_shard` makes it.
        dest_dir: The directory; must not hold a committed checkpoint.
        step: The job's step, for the manifest.

    Raises:
        CheckpointError: On every rank, if any of them failed; the directory is gone again.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    counters = per_rank_state["small"]["state"] if "small" in per_rank_state else {"batch": step, "step": step}
    header = CheckpointHeader(counters["batch"], step, world_size)
    save_directory(header, dest_dir, lambda: write_shard(per_rank_state, dest_dir))


def load_sharded(src_dir: Path, expected_world_size: int | None, *, checksums: bool = True) -> Iterator[dict[str, Any]]:
    """Read and check the shards of a committed checkpoint, one after the other, so that one is in memory at a time.

    Args:
        src_dir: The checkpoint directory.
        expected_world_size: Number of ranks that must have saved it, or None to accept any (resharding).
        checksums: Compare them; not to do so, and to believe the sizes, is the planted defect `no-checksum`.

    Yields:
        Every rank's shard, in rank order, as `build_shard` made it.

    Raises:
        CheckpointError: `world_size mismatch`, `sha256 mismatch on rank`, `shard file missing`, `unknown schema`,
            `unsafe shard path`, `duplicate rank`, `missing rank`, or a shard of another rank or length.
        RefusalError: The shards are of different models.
        OSError: A file cannot be read.
    """
    manifest = read_manifest(src_dir)
    check_ranks(src_dir, manifest)
    if expected_world_size not in (None, manifest.world_size):
        found = f"{manifest.world_size} (resume on {manifest.world_size} ranks, or pass --reshard)"
        raise mismatch("world_size mismatch", src_dir / "manifest.json", expected_world_size, found)
    records = {record.name: record for record in manifest.shards}
    first: dict[str, Any] = {}
    for rank in range(manifest.world_size):
        path, record = src_dir / shard_name(rank), records[shard_name(rank)]
        if not path.exists():
            raise mismatch("shard file missing", path, f"{record.size} bytes", "no file")
        data = read_bytes(path)
        check_digest(record, path, len(data), hashlib.sha256(data).hexdigest() if checksums else record.sha256, str(rank))
        shard = decode_payload(data, path, checksum=checksums)
        check_shard(shard, record, rank, path)
        first = first or shard
        if shard["layout"] != first["layout"]:
            # A refusal, as of a checkpoint of another model: its bytes are what they were when it was saved.
            raise RefusalError(str(mismatch("wrong layout", path, f"that of {shard_name(0)}", "another")))
        yield shard


def check_ranks(src_dir: Path, manifest: Manifest) -> None:
    """Raise `CheckpointError` unless the manifest lists exactly one shard per rank."""
    path, names = src_dir / "manifest.json", {record.name for record in manifest.shards}
    expected = {shard_name(rank) for rank in range(manifest.world_size)}
    if expected - names:
        found = f"no {', '.join(sorted(expected - names))}"
        raise mismatch("missing rank", path, f"{manifest.world_size} shards, rank0.bin and on", found)
    if names - expected:
        raise mismatch("unknown rank", path, f"shards of {manifest.world_size} ranks", ", ".join(sorted(names - expected)))


def check_shard(shard: Any, record: ShardRecord, rank: int, path: Path) -> None:
    """Raise `CheckpointError` unless a decoded shard is the one that the manifest lists for this rank."""
    if not isinstance(shard, dict):
        raise mismatch("cannot decode", path, "a dict", type(shard).__name__)
    check_schema(shard.get("schema"), path)
    check_names(shard, KEYS, path)
    expected = (rank, record.numel, [numel for _, _, numel in shard["pieces"]])
    if (shard["rank"], shard["numel"], [values.numel() for values in shard["values"]]) != expected:
        raise mismatch("wrong slice", path, f"rank {rank}, {record.numel} elements", f"rank {shard['rank']}, {shard['numel']}")


class ShardedFormat(DirectoryFormat):
    """See the module.

    Args:
        reshard: Whether to load a checkpoint saved by another number of ranks.
        omitted: Parts that a planted defect does not restore.
        checksums: See `load_sharded`.
    """

    def __init__(self, reshard: bool, omitted: Collection[str], *, checksums: bool = True) -> None:
        self._reshard = reshard
        self._omitted = omitted
        self._checksums = checksums

    def verify(self, path: Path) -> CheckpointHeader:
        """Check every byte of every shard, and decode it: what its checksum vouches for may still not be a shard."""
        for _ in load_sharded(path, None, checksums=self._checksums):
            pass
        manifest = read_manifest(path)
        return CheckpointHeader(manifest.batch, manifest.step, manifest.world_size)

    def save(self, training: Training, path: Path) -> bool:
        """Write this rank's shard and commit together."""
        save_sharded(build_shard(training), path, training.state.step)
        return True

    def load(self, training: Training, path: Path) -> str | None:
        """Put the state together from all shards and restore this rank."""
        error, warning = None, None
        try:
            warning = self._apply(training, path)
        except (OSError, CheckpointError) as caught:
            error = caught
        raise_together(error, f"load {path.name}")
        return warning

    def _apply(self, training: Training, path: Path) -> str | None:
        live = live_tensors(training)
        filler = Filler(kept(training, live, self._omitted), path)
        rng_states = []
        last: dict[str, Any] = {}
        ranks = None if self._reshard else training.world.world_size
        for last in load_sharded(path, ranks, checksums=self._checksums):
            check_job(training.config, last["small"]["job"], path / shard_name(last["rank"]))
            check_layout(live, last["layout"], path / shard_name(last["rank"]))
            filler.fill(pieces_of(last))
            rng_states.append(last["rng"])
        filler.finish()
        settle(training, last["param_groups"], path, self._omitted)
        apply_small_state(training, last["small"], path, self._omitted)
        return apply_rng_states(training, rng_states, self._omitted)


def build_format(config: TrainConfig) -> ShardedFormat:
    """Return the format as the configuration wants it."""
    reshard = config.reshard and "no-reshard" not in config.defect
    if planted.SAVES.keys() & set(config.defect):
        return planted.PlantedSaves(reshard, config.defect)
    return ShardedFormat(reshard, omitted_parts(config.defect), checksums="no-checksum" not in config.defect)


# The planted variants build on what is defined above.
from harness.reference import planted  # noqa: E402
