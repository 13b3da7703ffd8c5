"""Digests of what a foreign job consists of, per component, without changing any of it.

Responsible for: reading tensors byte by byte (of what is split over ranks, the part that is here), names of parameters that do
not depend on wrappers, generators, and plain values. Draws nothing, writes nothing, keeps nothing alive.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import re
import sys
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .found import Found

# What a wrapper puts before the name of a parameter.
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")
# Larger tensors are read with a checksum: a quarter of the time.
_HASHED_BYTES = 1 << 20
_MANY = 64
# Of a longer row of a batch these many pieces of so many bytes are read, spread over it.
_ROW_BYTES = 8192
_PIECES, _PIECE_BYTES = 32, 128
# Inputs of a model are nested no deeper.
_DEEPEST = 5
# What schedulers count of themselves, and no learning rate depends on.
_NOT_STATE = ("_step_count", "verbose", "_get_lr_called_within_step", "_is_initial")


def plain_name(name: str) -> str:
    """The name of a parameter as the bare model has it."""
    return _WRAPPERS.sub(r"\1", name).replace("..", ".").strip(".")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, or of the part of it that this rank holds."""
    local = _local(tensor)
    if local.numel() == 0 or local.data_ptr() == 0:
        return memoryview(b"")
    return memoryview(ctypes.string_at(local.data_ptr(), local.numel() * local.element_size()))


def _local(tensor: torch.Tensor) -> torch.Tensor:
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


def models(found: Found) -> dict[str, str]:
    """`model` and `buffers`."""
    parameters = _named(found)
    buffers: dict[str, torch.Tensor] = {}
    for number, module in enumerate(found.roots):
        buffers.update((f"{number}.{plain_name(name)}", value) for name, value in module.named_buffers())
    digests = {"model": digest(parameters)} if parameters else {}
    return digests | ({"buffers": digest(buffers)} if buffers else {})


def weights(found: Found) -> list[torch.Tensor]:
    """The parameters that are trained."""
    return list(_named(found).values())


def _named(found: Found) -> dict[str, torch.Tensor]:
    owned = {id(p) for one in found.optimizers for group in one.param_groups for p in group["params"]}
    return {
        name: found.trained(name, value, owned)
        for number, module in enumerate(found.roots)
        for full, value in module.named_parameters()
        for name in [f"{number}.{plain_name(full)}"]
    }


def optimizers(found: Found) -> dict[str, str]:
    """`optimizer`: its state by the names of parameters, and the options of its groups but for the learning rate."""
    names = {id(value): name for name, value in _named(found).items()}
    state: dict[str, object] = {}
    for number, optimizer in enumerate(found.optimizers):
        for place, group in enumerate(optimizer.param_groups):
            state[f"{number}.{place}"] = {key: v for key, v in group.items() if key not in ("params", "lr", "initial_lr")}
            for index, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"{place}.{index}")
                state[f"{number}:{name}"] = dict(optimizer.state.get(parameter, {}))
    return {"optimizer": digest(state)} if state else {}


def schedules(found: Iterable[Any], optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, str]:
    """`scheduler`: the learning rates, and what the schedulers count."""
    rates = [[_number(group.get("lr")) for group in optimizer.param_groups] for optimizer in optimizers]
    counts = [
        {key: value for key, value in scheduler.state_dict().items() if key not in _NOT_STATE and _is_plain(value)}
        for scheduler in found
    ]
    return {"scheduler": digest([rates, counts])} if rates else {}


def _number(value: Any) -> float:
    return float(value) if value is not None else -1.0


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


def scalers(found: Iterable[Any]) -> dict[str, str]:
    """`scaler`, where one is switched on."""
    states = [scaler.state_dict() for scaler in found if scaler.is_enabled()]
    return {"scaler": digest(states)} if states else {}


def generators() -> dict[str, str]:
    """`rng.python`, `rng.torch`, and `rng.numpy` and `rng.cuda` where they are in use."""
    found = {"rng.python": digest(random.getstate()), "rng.torch": digest(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, *rest = numpy.random.get_state()
        found["rng.numpy"] = digest([name, keys.tobytes(), *rest])
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of this device only: to ask another one would start it
        found["rng.cuda"] = digest(torch.cuda.get_rng_state())
    return found


def rows(values: Iterable[object], most: int = 256) -> list[int]:
    """One number of 60 bits per sample of a batch: what stands in the same row of all tensors whose first size is the batch's.

    One number for all of it where there are more rows than `most`. Of long rows pieces are read.
    """
    tensors = [_local(tensor) for tensor in _tensors(values, 0)]
    sized = [tensor for tensor in tensors if tensor.dim() > 0]
    if not sized:
        return [_number_of([(_view(tensor), 0, tensor.element_size()) for tensor in tensors])] if tensors else []
    count = sized[0].shape[0]
    if count > most or count == 0:
        return [_number_of([(view, 0, len(view)) for view in map(_view, sized)])]
    parts = [(view, len(view) // count) for tensor in sized if tensor.shape[0] == count and len(view := _view(tensor))]
    return [_number_of([(view, row * size, size) for view, size in parts]) for row in range(count)]


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
