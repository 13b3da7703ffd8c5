"""The planted defects of saving in shards (`defects`). Nothing here runs in a healthy job; each shows how not to do it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from harness.reference import sharded
from harness.reference.atomic import TEMPORARY_SUFFIX, fsync_directory, make_directory, write_payload
from harness.reference.comm import gather_values, rank0_decides
from harness.reference.defects import omitted_parts
from harness.reference.formats import CheckpointHeader
from harness.reference.manifest import (
    MANIFEST_NAME,
    ShardRecord,
    exchange_records,
    header_of,
    is_committed,
    make_manifest,
    manifest_text,
    prepare_directory,
    read_manifest,
    remove_directory,
    save_directory,
    write_manifest,
)
from harness.reference.state import Training

FIXED_DIRECTORY = "latest"


def save_manifest_first(training: Training, path: Path) -> None:
    """Commit on checksums of what is still in memory, then write the shards."""
    shard = sharded.build_shard(training)
    rank0_decides(lambda: prepare_directory(path))
    shards = exchange_records(path, lambda: [record_of(shard)])
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


def save_without_waiting(training: Training, path: Path) -> None:
    """Commit as soon as rank 0's own shard is there: what the manifest lists was known before anything was written.

    The ranks do meet in the end, so that only a death between the commit and the last shard shows the mistake.
    """
    shard = sharded.build_shard(training)
    rank0_decides(lambda: prepare_directory(path))
    shards = exchange_records(path, lambda: [record_of(shard)])
    sharded.write_shard(shard, path)
    if training.world.rank == 0:
        write_manifest(path, make_manifest(header_of(training), shards))
    gather_values(None)


def save_renaming_early(training: Training, path: Path) -> None:
    """Write into a directory of another name, which each rank renames when it is through itself.

    Every file is opened before the first rename can come, so that it only moves with the directory: nothing fails, and the
    mistake is seen only when the job dies between the first rename and the last write.
    """
    shard = sharded.build_shard(training)
    staging = path.with_name(f".{path.name}")
    rank0_decides(lambda: _make_anew(staging))
    with (staging / sharded.shard_name(shard["rank"])).open("xb", buffering=0) as file:
        shards = exchange_records(path, lambda: [record_of(shard)])
        manifest = make_manifest(header_of(training), shards)
        rank0_decides(lambda: _write_plainly(staging / MANIFEST_NAME, manifest_text(manifest)))
        write_payload(shard, file)
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):  # another rank was first
        staging.rename(path)
    fsync_directory(path)
    fsync_directory(path.parent)
    gather_values(None)  # too late


def record_of(shard: dict[str, Any]) -> ShardRecord:
    """Return how a manifest will list a shard that is still in memory only."""
    size, sha256 = write_payload(shard, io.BytesIO())
    return ShardRecord(sharded.shard_name(shard["rank"]), size, sha256, numel=shard["numel"])


def _make_anew(directory: Path) -> None:
    if directory.exists():
        remove_directory(directory)
    make_directory(directory)


def _write_plainly(path: Path, text: str) -> None:
    with path.open("xb", buffering=0) as file:
        file.write(text.encode())
        os.fsync(file.fileno())


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
        return [record_of(shard)]

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
    "missing-barrier": save_without_waiting,
    "early-rename": save_renaming_early,
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

    def verify(self, path: Path) -> CheckpointHeader:
        """Check every byte; but believe a directory that got its name by a rename."""
        if self._name != "early-rename":
            return super().verify(path)
        manifest = read_manifest(path)
        return CheckpointHeader(manifest.batch, manifest.step, manifest.world_size)

    def save(self, training: Training, path: Path) -> bool:
        """Save as the defect does."""
        SAVES[self._name](training, path)
        return True
