"""Digests of values, per component and per name, without changing any of them.

Responsible for: reading tensors byte by byte (of what is split over ranks, the part that is here), generators, and plain values.
Draws nothing, writes nothing, keeps nothing alive. Not responsible for: what belongs to which component (`content`).
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .content import Content

# Larger tensors are read with a checksum: a quarter of the time.
_HASHED_BYTES = 1 << 20
_MANY = 64
# Of more parts than these a log would hold little else.
_MANY_PARTS, _BRIEF = 400, 8
# Of a longer row of a batch these many pieces of so many bytes are read, spread over it.
_ROW_BYTES = 8192
_PIECES, _PIECE_BYTES = 32, 128
# Inputs of a model are nested no deeper.
_DEEPEST = 5


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, or of the part of it that this rank holds."""
    here = local(tensor)
    if here.numel() == 0 or here.data_ptr() == 0:
        return memoryview(b"")
    return memoryview(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, in memory that can be read."""
    local: Any = tensor.detach()
    if hasattr(local, "to_local"):
        local = local.to_local()
    if hasattr(local, "wait"):
        local = local.wait()
    found: torch.Tensor = local.cpu().contiguous()
    return found.resolve_conj().resolve_neg()


def _feed(digest: Any, value: object) -> None:
    if isinstance(value, torch.Tensor):
        data = tensor_bytes(value)
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(data if len(data) <= _HASHED_BYTES else f"{zlib.crc32(data)}:{zlib.adler32(data)}".encode())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}:".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}".encode())
        if len(value) > _MANY and type(value[0]) is int:  # Python's generator: one number after the other would take a while
            digest.update(repr(value).encode())
            return
        for item in value:
            _feed(digest, item)
    elif isinstance(value, float):
        digest.update(value.hex().encode())
    elif value is None or isinstance(value, (bool, int, str, bytes)):
        digest.update(repr(value).encode())
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        digest.update(value.tobytes())
    # Anything else (functions, objects) has no value that two processes could share.


def digest(value: object) -> str:
    """Hex digits that are equal exactly where the values are."""
    found = hashlib.blake2b(digest_size=12)
    _feed(found, value)
    return found.hexdigest()


def of_parts(content: Content) -> dict[str, dict[str, str]]:
    """Component → name → digest of what stands by that name."""
    return {component: {name: digest(value) for name, value in part.items()} for component, part in content.items()}


def of_components(parts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Component → digest, equal exactly where the digests of all its parts are."""
    return {component: digest(part) for component, part in parts.items()}


def briefly(parts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The first digits of each part's digest, of components that have several parts and not too many of them."""
    return {
        component: {name: text[:_BRIEF] for name, text in part.items()}
        for component, part in parts.items()
        if 1 < len(part) <= _MANY_PARTS
    }


def rows(values: Iterable[object], most: int = 256) -> list[int]:
    """One number of 60 bits per sample of a batch: what stands in the same row of all tensors whose first size is the batch's.

    One number for all of it where there are more rows than `most`. Of long rows pieces are read.
    """
    found = [local(tensor) for tensor in tensors(values)]
    sized = [tensor for tensor in found if tensor.dim() > 0]
    if not sized:
        return [_number_of([(_view(tensor), 0, tensor.element_size()) for tensor in found])] if found else []
    count = sized[0].shape[0]
    if count > most or count == 0:
        return [_number_of([(view, 0, len(view)) for view in map(_view, sized)])]
    parts = [(view, len(view) // count) for tensor in sized if tensor.shape[0] == count and len(view := _view(tensor))]
    return [_number_of([(view, row * size, size) for view, size in parts]) for row in range(count)]


def tensors(values: Iterable[object]) -> Iterable[torch.Tensor]:
    """Those among the arguments of a call, or in containers among them."""
    return _tensors(list(values), 0)


def _view(tensor: torch.Tensor) -> memoryview:
    """Without a copy: to be read while the tensor is there."""
    size = tensor.numel() * tensor.element_size()
    if size == 0 or tensor.data_ptr() == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _number_of(parts: list[tuple[memoryview, int, int]]) -> int:
    one = hashlib.blake2b(digest_size=8)
    for view, start, size in parts:
        if size <= _ROW_BYTES:
            one.update(view[start : start + size])
        else:
            for piece in range(_PIECES):
                at = start + piece * (size - _PIECE_BYTES) // (_PIECES - 1)
                one.update(view[at : at + _PIECE_BYTES])
    return int(one.hexdigest()[:15], 16)


def _tensors(value: object, depth: int) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(value[key], depth + 1)
    elif isinstance(value, (list, tuple)) and depth < _DEEPEST:
        for item in value:
            yield from _tensors(item, depth + 1)
