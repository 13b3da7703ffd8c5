"""The format `safetensors`: the weights as an export without pickle, beside the rest of the state, under one manifest.

`model.safetensors` is what inference loads, in a format that holds nothing but tensors and that other languages read. The
rest (optimizer, counters, generators) is in `training.bin`. Neither format notices a flipped bit by itself: the manifest's
checksums do.

Source: the safetensors format description, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from harness.reference.atomic import TEMPORARY_SUFFIX, atomic_save, decode_payload, read_bytes, write_durably
from harness.reference.comm import raise_together
from harness.reference.config import TrainConfig
from harness.reference.defects import omitted_parts
from harness.reference.errors import CheckpointError, mismatch
from harness.reference.formats import CheckpointHeader
from harness.reference.manifest import (
    DirectoryFormat,
    ShardRecord,
    header_of,
    save_directory,
    verify_directory,
)
from harness.reference.payload import apply_payload, check_payload, collect_payload
from harness.reference.state import Training

WEIGHTS_NAME = "model.safetensors"
TRAINING_NAME = "training.bin"


def export_weights(weights: dict[str, Tensor], path: Path) -> tuple[int, str]:
    """Write weights durably as a safetensors file.

    Tensors that share their storage are written once each, as the format demands.

    Returns:
        Size in bytes and sha256 (hex).

    Raises:
        OSError: It could not be written.
    """
    data = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()})

    def write(file: Any) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) or 0 :]

    write_durably(path, write, path.with_name(path.name + TEMPORARY_SUFFIX))
    return len(data), hashlib.sha256(data).hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read an export.

    Raises:
        CheckpointError: Missing, or no safetensors file.
    """
    data = read_bytes(path)
    try:
        return load(data)
    except (SafetensorError, ValueError, json.JSONDecodeError, struct.error) as error:
        raise CheckpointError(f"cannot decode: {path}: expected a safetensors file, found {error}") from error


class SafetensorsFormat(DirectoryFormat):
    """See the module; `omitted` are the parts that a planted defect does not restore, no `checksums` is another."""

    def __init__(self, omitted: frozenset[str], *, checksums: bool = True) -> None:
        self._omitted = omitted
        self._checksums = checksums

    def verify(self, path: Path) -> CheckpointHeader:
        """Check every byte of both files."""
        manifest, header = verify_directory(path, lambda _: "0", checksums=self._checksums)
        names = sorted(record.name for record in manifest.shards)
        if names != [WEIGHTS_NAME, TRAINING_NAME]:
            raise mismatch("shard file missing", path / "manifest.json", f"{WEIGHTS_NAME}, {TRAINING_NAME}", ", ".join(names))
        return header

    def save(self, training: Training, path: Path) -> bool:
        """Collect the state of all ranks, write both files on rank 0, commit together."""
        payload = collect_payload(training)
        save_directory(header_of(training), path, lambda: _write(payload, path) if training.world.rank == 0 else [])
        return True

    def load(self, training: Training, path: Path) -> str | None:
        """Restore this rank from the two files."""
        error, warning = None, None
        try:
            file = path / TRAINING_NAME
            rest = decode_payload(read_bytes(file), file, checksum=self._checksums)
            if not isinstance(rest, dict):
                raise mismatch("cannot decode", file, "a dict", type(rest).__name__)
            payload = check_payload({**rest, "model": read_weights(path / WEIGHTS_NAME)}, file)
            warning = apply_payload(training, payload, path, self._omitted)
        except (OSError, CheckpointError) as caught:
            error = caught
        raise_together(error, f"load {path.name}")
        return warning


def _write(payload: dict[str, Any], path: Path) -> list[ShardRecord]:
    rest = {key: value for key, value in payload.items() if key != "model"}
    weights, training = path / WEIGHTS_NAME, path / TRAINING_NAME
    try:
        sizes = [export_weights(payload["model"], weights)]
        sizes.append(atomic_save(rest, training, training.with_name(training.name + TEMPORARY_SUFFIX)))
    except OSError as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error
    return [ShardRecord(name, size, sha256) for name, (size, sha256) in zip((WEIGHTS_NAME, TRAINING_NAME), sizes, strict=True)]


def build_format(config: TrainConfig) -> SafetensorsFormat:
    """Return the format as the configuration wants it."""
    return SafetensorsFormat(omitted_parts(config.defect), checksums="no-checksum" not in config.defect)
