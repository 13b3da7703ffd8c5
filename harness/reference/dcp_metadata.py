"""The `.metadata` of `torch.distributed.checkpoint`, read without trusting it.

DCP keeps there which tensors there are and in which files, as a pickle, and reads it with `pickle.load`: whoever can write
into the checkpoint directory can run code in the trainer. Here it is read by an unpickler that knows the few classes that
DCP itself writes, and nothing else; and what it says is compared with the manifest before anything is loaded.

Source: torch/distributed/checkpoint/{filesystem,metadata}.py of torch 2.13.
"""

from __future__ import annotations

import enum
import io
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from harness.reference.atomic import read_bytes
from harness.reference.errors import CheckpointError, mismatch
from harness.reference.formats import check_names

METADATA_NAME = ".metadata"
_DCP = "torch.distributed.checkpoint"
_CLASSES = {
    *((f"{_DCP}.metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((f"{_DCP}.metadata", name) for name in ("TensorStorageMetadata", "ChunkStorageMetadata", "BytesStorageMetadata")),
    *((f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"), (f"{_DCP}.filesystem", "_StorageInfo")),
    *(("torch", "Size"), ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES or (module == "torch" and isinstance(vars(torch).get(name), torch.dtype)):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return self._enum_member
        raise self._code(f"{module}.{name}")

    def _enum_member(self, owner: Any, name: str) -> Any:
        """What a pickle gets for `getattr`, by which Python 3.11.0 to 3.11.3 pickles a member of an enumeration."""
        if isinstance(owner, enum.EnumMeta) and owner.__module__.startswith(_DCP) and name in owner.__members__:
            return owner[name]
        raise self._code("builtins.getattr")

    def _code(self, found: str) -> CheckpointError:
        return mismatch("code in a pickle", self._path, f"the classes of {_DCP} only", found)


class CarefulReader(FileSystemReader):
    """DCP's own reader, but for the metadata."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._directory = path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002 - of the class above
        """Read `.metadata`; raises `CheckpointError` where it is not what DCP writes."""
        metadata = read_metadata(self._directory)
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


def read_metadata(directory: Path) -> Metadata:
    """Read `.metadata` without running anything in it.

    Raises:
        CheckpointError: Missing, damaged, or a pickle of anything but DCP's own classes.
    """
    path = directory / METADATA_NAME
    data = read_bytes(path)
    try:
        found = _Unpickler(data, path).load()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its opcodes happen to run into
        problem = f"{len(data)} bytes, {type(error).__name__}: {error}"
        raise mismatch("cannot decode", path, f"metadata of {_DCP}", problem) from error
    parts = (getattr(found, "state_dict_metadata", None), getattr(found, "storage_data", None))
    if not isinstance(found, Metadata) or not all(isinstance(part, dict) for part in parts):
        raise mismatch("cannot decode", path, f"metadata of {_DCP}", type(found).__name__)
    return found


def check_metadata(directory: Path, listed: Iterable[str], world_size: int) -> None:
    """Compare what `.metadata` speaks of with what the manifest lists, and with what a checkpoint consists of.

    Args:
        directory: The checkpoint.
        listed: Names of the files in the manifest.
        world_size: Number of ranks that saved.

    Raises:
        CheckpointError: A file is read that the manifest does not list, a part is missing, or one is unknown.
    """
    metadata = read_metadata(directory)
    files = {str(getattr(info, "relative_path", info)) for info in metadata.storage_data.values()}
    unlisted = sorted(files - set(listed))
    if unlisted:
        expected = f"every file that {METADATA_NAME} speaks of ({', '.join(sorted(files))})"
        raise mismatch("missing rank", directory / "manifest.json", expected, f"no {', '.join(unlisted)}")
    names = {str(name) for name in metadata.state_dict_metadata}
    small = {name for name in names if not name.startswith(("model.", "optimizer.", "ema."))}
    check_names(small, {"small", *(f"rng_rank{rank}" for rank in range(world_size))}, directory / METADATA_NAME)


def check_tensors(found: Iterable[str], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise `CheckpointError` unless a checkpoint has exactly the tensors of this job; `wanted` is nested by name."""
    names = {name for name in found if name.startswith(("model.", "optimizer.", "ema."))}
    check_names(names, set(_flat("", wanted)), path / METADATA_NAME)


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}"
