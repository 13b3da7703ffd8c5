"""Checkpoint directories: many files and one `manifest.json`, whose presence is the commit.

The manifest is written last, after every file it lists is known to be durable, and removed first. So a directory with
a manifest is complete and one without is rubbish. A committed directory is never written into again: replacing files
one by one under an old manifest would destroy the old checkpoint before the new one exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.reference.atomic import TEMPORARY_SUFFIX, fsync_directory, make_directory, read_bytes, write_durably
from harness.reference.comm import gather_values, rank0_decides, word_failures
from harness.reference.errors import CheckpointError, mismatch, one_line
from harness.reference.formats import CheckpointHeader, SynchronousFormat, batch_of, checkpoint_name
from harness.reference.state import CHECKPOINT_SCHEMA, Training, check_schema

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class ShardRecord:
    """One file of a checkpoint, as the manifest lists it.

    Attributes:
        name: File name inside the directory.
        size: Bytes.
        sha256: Of the whole file, hex.
        offset: Place of its first element when all shards are laid end to end, or None if it holds no elements.
        numel: Number of elements, or None.
    """

    name: str
    size: int
    sha256: str
    offset: int | None = None
    numel: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`; see `ShardRecord` and `CheckpointHeader`."""

    schema: str
    world_size: int
    step: int
    batch: int
    shards: tuple[ShardRecord, ...]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Commit a checkpoint: write its manifest durably, then make the directory's own name durable.

    Raises:
        OSError: It could not be written.
    """
    text = manifest_text(manifest)
    path = directory / MANIFEST_NAME

    def write(file: Any) -> None:
        data = memoryview(text.encode())
        while data:
            data = data[file.write(data) or 0 :]

    write_durably(path, write, path.with_name(MANIFEST_NAME + TEMPORARY_SUFFIX))
    fsync_directory(directory.parent)


def manifest_text(manifest: Manifest) -> str:
    """Return the content of the file, with its checksum."""
    fields = asdict(manifest)
    # No line break at the end: cutting off the last byte must leave something that is no JSON.
    return json.dumps({**fields, "sha256": seal(fields)}, indent=1)


def seal(fields: dict[str, Any]) -> str:
    """Return the checksum (sha256, hex) of a manifest's fields; it too may be hit by a flipped bit."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Read and check a manifest, but none of the files it lists.

    Raises:
        CheckpointError: Missing, not readable as one, unknown schema, unsafe shard path, duplicate shard, a batch
            number other than the one in the directory's name, or a checksum that does not fit.
    """
    path = directory / MANIFEST_NAME
    raw = read_bytes(path)
    try:
        found = json.loads(raw)
        check_schema(found.get("schema"), path)
        shards = tuple(ShardRecord(**shard) for shard in found["shards"])
        manifest = Manifest(found["schema"], int(found["world_size"]), int(found["step"]), int(found["batch"]), shards)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        problem = f"{len(raw)} bytes, {type(error).__name__}: {error}"
        raise mismatch("cannot decode", path, f"a manifest of schema {CHECKPOINT_SCHEMA}", problem) from error
    _check_names(path, manifest)
    if batch_of(directory) not in (None, manifest.batch):
        raise mismatch("step mismatch", path, f"batch {batch_of(directory)} as in the name", f"batch {manifest.batch}")
    # Last, so that a manifest that was edited is told what is wrong with it, not only that it was edited.
    expected = seal({key: value for key, value in found.items() if key != "sha256"})
    if found.get("sha256") != expected:
        raise mismatch("sha256 mismatch of the manifest", path, expected, found.get("sha256"))
    return manifest


def _check_names(path: Path, manifest: Manifest) -> None:
    names = [shard.name for shard in manifest.shards]
    for name in names:
        # Only plain names: the manifest is data, and must not be able to point outside its directory.
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise mismatch("unsafe shard path", path, "a plain file name", repr(name))
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise mismatch("duplicate rank", path, "each shard once", f"{', '.join(duplicates)} more than once")


def verify_directory(
    directory: Path, rank_of: Callable[[str], str], *, checksums: bool = True
) -> tuple[Manifest, CheckpointHeader]:
    """Check a manifest and every byte of every file it lists.

    Args:
        directory: The checkpoint.
        rank_of: File name → the rank that wrote it, for the text of errors.
        checksums: Compare them; not to do so, and to believe the sizes, is the planted defect `no-checksum`.

    Raises:
        CheckpointError: Anything is missing or altered.
        OSError: A file cannot be read.
    """
    manifest = read_manifest(directory)
    for shard in manifest.shards:
        path = directory / shard.name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except FileNotFoundError:
            raise mismatch("shard file missing", path, f"{shard.size} bytes", "no file") from None
        check_digest(shard, path, size, found if checksums else shard.sha256, rank_of(shard.name))
    return manifest, CheckpointHeader(manifest.batch, manifest.step, manifest.world_size)


def check_digest(shard: ShardRecord, path: Path, size: int, sha256: str, rank: str) -> None:
    """Raise `CheckpointError` unless size and checksum are what the manifest says."""
    if (size, sha256) != (shard.size, shard.sha256):
        expected = f"{shard.size} bytes with sha256 {shard.sha256}"
        raise mismatch(f"sha256 mismatch on rank {rank}", path, expected, f"{size} bytes with sha256 {sha256}")


def is_committed(path: Path) -> bool:
    """Return whether a directory is a committed checkpoint, valid or not."""
    return os.path.lexists(path / MANIFEST_NAME)


def find_directories(parent: Path) -> list[Path]:
    """Return the committed checkpoint directories, newest first."""
    if not parent.is_dir():
        return []
    found = [(batch, path) for path in parent.iterdir() if (batch := batch_of(path)) is not None and is_committed(path)]
    return [path for _, path in sorted(found, reverse=True)]


class DirectoryFormat(SynchronousFormat):
    """What all formats have in common whose checkpoint is a directory with a manifest."""

    def path_for(self, parent: Path, batch: int) -> Path:
        """Return the directory of this batch."""
        return parent / checkpoint_name(batch)

    def find(self, parent: Path) -> list[Path]:
        """Return the committed directories, newest first."""
        return find_directories(parent)


def remove_directory(path: Path) -> None:
    """Remove a checkpoint directory so that a kill in between leaves nothing that looks like a checkpoint.

    Raises:
        OSError: Something could not be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        (path / MANIFEST_NAME).unlink()
        # Without this, a power cut could bring the manifest back over files that are gone.
        fsync_directory(path)
    for entry in sorted(path.iterdir()):
        entry.unlink()
    path.rmdir()
    fsync_directory(path.parent)


def prepare_directory(path: Path) -> None:
    """Make an empty directory for a new checkpoint, in place of the left-overs of a save that was never committed.

    Raises:
        CheckpointError: It is committed already.
        OSError: It could not be made.
    """
    if is_committed(path):
        raise mismatch("already committed", path, "no checkpoint of this number", "one that must not be overwritten")
    if path.is_dir():
        remove_directory(path)
    make_directory(path.parent)
    path.mkdir()  # its own name is made durable by the commit


def save_directory(header: CheckpointHeader, path: Path, write_files: Callable[[], Sequence[ShardRecord]]) -> None:
    """Save a checkpoint directory: every rank writes its files, then rank 0 commits. Collective.

    Args:
        header: What the manifest is to say of the job.
        path: The directory, not committed yet.
        write_files: Writes this rank's files durably and returns their records.

    Raises:
        CheckpointError: On every rank, if any of them failed; the directory is gone again.
    """
    rank0_decides(lambda: prepare_directory(path))
    commit_directory(header, path, write_files)


def commit_directory(header: CheckpointHeader, path: Path, write_files: Callable[[], Sequence[ShardRecord]]) -> None:
    """The second half of `save_directory`, in a directory that has been prepared. Collective."""
    try:
        shards = exchange_records(path, write_files)
        # Only now is every file on every rank known to be durable, so only now may the commit be made. Waiting for
        # its outcome is what lets no rank return from a save, and perhaps delete older ones, before there is one.
        rank0_decides(lambda: write_manifest(path, make_manifest(header, shards)))
    except CheckpointError:
        rank0_decides(lambda: _discard(path))
        raise


def header_of(training: Training) -> CheckpointHeader:
    """Return what a checkpoint of the job's present state says of it."""
    return CheckpointHeader(training.state.batch, training.state.step, training.world.world_size)


def make_manifest(header: CheckpointHeader, shards: Sequence[ShardRecord]) -> Manifest:
    """Return the manifest of a checkpoint; shards that say how many elements they hold get their offset here."""
    placed, end = [], 0
    for shard in shards:
        placed.append(shard if shard.numel is None else replace(shard, offset=end))
        end += shard.numel or 0
    return Manifest(CHECKPOINT_SCHEMA, header.world_size, header.step, header.batch, tuple(placed))


def exchange_records(path: Path, write_files: Callable[[], Sequence[ShardRecord]]) -> list[ShardRecord]:
    """Write this rank's files and learn what every rank wrote; the exchange is the barrier before the commit.

    Raises:
        CheckpointError: On every rank, if any of them failed; the text names rank, file and system error.
    """
    records: Sequence[ShardRecord] = ()
    problem = None
    try:
        records = write_files()
    except (OSError, CheckpointError) as error:
        problem = one_line(error)
    outcomes = gather_values((problem, list(records)))
    errors = [text for text, _ in outcomes]
    if any(errors):
        raise CheckpointError(f"cannot save {path}: {word_failures(errors)}")
    return [record for _, written in outcomes for record in written]


def _discard(path: Path) -> None:
    # What made the save fail is the error to report; a disk that is broken may well refuse to delete, too.
    with contextlib.suppress(OSError):
        remove_directory(path)
