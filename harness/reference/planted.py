"""The planted defects of saving in shards (`defects`). Nothing here runs in a healthy job; each shows how not to do it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from harness.reference import sharded
from harness.reference.atomic import TEMPORARY_SUFFIX, make_directory, write_payload
from harness.reference.comm import gather_values, rank0_decides
from harness.reference.defects import omitted_parts
from harness.reference.manifest import (
    ShardRecord,
    exchange_records,
    header_of,
    is_committed,
    make_manifest,
    prepare_directory,
    save_directory,
    write_manifest,
)
from harness.reference.state import Training

FIXED_DIRECTORY = "latest"


def save_manifest_first(training: Training, path: Path) -> None:
    """Commit on checksums of what is still in memory, then write the shards."""
    shard = sharded.build_shard(training)
    size, sha256 = write_payload(shard, io.BytesIO())
    record = ShardRecord(sharded.shard_name(shard["rank"]), size, sha256, numel=shard["numel"])
    rank0_decides(lambda: prepare_directory(path))
    shards = exchange_records(path, lambda: [record])
    rank0_decides(lambda: write_manifest(path, make_manifest(header_of(training), shards)))
    exchange_records(path, lambda: sharded.write_shard(shard, path))


def save_into_used_directory(training: Training, path: Path) -> None:
    """Rename new shards over those of the committed checkpoint; until the last rename there is no whole checkpoint."""
    shard = sharded.build_shard(training)
    final = path / sharded.shard_name(shard["rank"])
    temporary = final.with_name(final.name + TEMPORARY_SUFFIX)
    rank0_decides(lambda: make_directory(path))
    with temporary.open("wb", buffering=0) as file:
        size, sha256 = write_payload(shard, file)
        os.fsync(file.fileno())
    gather_values(None)
    temporary.replace(final)
    shards = exchange_records(path, lambda: [ShardRecord(final.name, size, sha256, numel=shard["numel"])])
    rank0_decides(lambda: write_manifest(path, make_manifest(header_of(training), shards)))


def save_short(training: Training, path: Path) -> None:
    """Lose the last bytes of each shard after its checksum was taken."""
    shard = sharded.build_shard(training)

    def write() -> list[ShardRecord]:
        records = sharded.write_shard(shard, path)
        os.truncate(path / records[0].name, records[0].size - 8)
        return records

    save_directory(header_of(training), path, write)


def save_without_last(training: Training, path: Path) -> None:
    """Leave the last rank's shard out, and list it."""
    shard = sharded.build_shard(training)

    def write() -> list[ShardRecord]:
        if training.world.rank < training.world.world_size - 1:
            return sharded.write_shard(shard, path)
        size, sha256 = write_payload(shard, io.BytesIO())
        return [ShardRecord(sharded.shard_name(shard["rank"]), size, sha256, numel=shard["numel"])]

    save_directory(header_of(training), path, write)


def save_partial(training: Training, path: Path) -> None:
    """Write zeros for the last quarter of each shard, under a checksum that fits."""
    shard: dict[str, Any] = sharded.build_shard(training)
    left = shard["numel"] // 4
    for number in reversed(range(len(shard["values"]))):
        values = shard["values"][number].clone()  # not the live one
        values[max(0, len(values) - left) :] = 0.0
        shard["values"][number] = values
        left = max(0, left - len(values))
    save_directory(header_of(training), path, lambda: sharded.write_shard(shard, path))


SAVES: dict[str, Callable[[Training, Path], None]] = {
    "manifest-first": save_manifest_first,
    "reuse-directory": save_into_used_directory,
    "short-shard": save_short,
    "missing-shard": save_without_last,
    "partial-shard": save_partial,
}


class PlantedSaves(sharded.ShardedFormat):
    """The sharded format with one of `SAVES` in the place of its own."""

    def __init__(self, reshard: bool, defects: Collection[str]) -> None:
        super().__init__(reshard, omitted_parts(defects))
        self._name = next(name for name in defects if name in SAVES)

    def path_for(self, parent: Path, batch: int) -> Path:
        """Return the directory of this batch, or the one that is used for all."""
        return parent / FIXED_DIRECTORY if self._name == "reuse-directory" else super().path_for(parent, batch)

    def find(self, parent: Path) -> list[Path]:
        """Return the committed directories, newest first."""
        fixed = parent / FIXED_DIRECTORY
        return [fixed] if self._name == "reuse-directory" and is_committed(fixed) else super().find(parent)

    def save(self, training: Training, path: Path) -> bool:
        """Save as the defect does."""
        SAVES[self._name](training, path)
        return True
