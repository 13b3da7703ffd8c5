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

# What a wrapper puts before the name of a parameter.
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")
# Larger tensors are read with a checksum: a quarter of the time.
_HASHED_BYTES = 1 << 20
# What schedulers count of themselves, and no learning rate depends on.
_NOT_STATE = ("_step_count", "verbose", "_get_lr_called_within_step", "_is_initial")


def plain_name(name: str) -> str:
    """The name of a parameter as the bare model has it."""
    return _WRAPPERS.sub(r"\1", name).replace("..", ".").strip(".")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, or of the part of it that this rank holds."""
    local = tensor.detach()
    if hasattr(local, "to_local"):
        local = local.to_local()
    if hasattr(local, "wait"):
        local = local.wait()
    local = local.cpu().contiguous()
    size = local.numel() * local.element_size()
    if size == 0 or local.data_ptr() == 0:
        return memoryview(b"")
    return memoryview(ctypes.string_at(local.data_ptr(), size))


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
        for item in value:
            _feed(digest, item)
    elif isinstance(value, float):
        digest.update(value.hex().encode())
    elif value is None or isinstance(value, (bool, int, str, bytes)):
        digest.update(repr(value).encode())
    elif type(value).__module__ == "numpy":
        digest.update(repr(value.tolist()).encode())
    # Anything else (functions, objects) has no value that two processes could share.


def digest(value: object) -> str:
    """Hex digits that are equal exactly where the values are."""
    found = hashlib.blake2b(digest_size=12)
    _feed(found, value)
    return found.hexdigest()


def models(modules: Iterable[torch.nn.Module]) -> dict[str, str]:
    """`model` and `buffers`."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for number, module in enumerate(modules):
        parameters.update((f"{number}.{plain_name(name)}", value) for name, value in module.named_parameters())
        buffers.update((f"{number}.{plain_name(name)}", value) for name, value in module.named_buffers())
    found = {"model": digest(parameters)} if parameters else {}
    return found | ({"buffers": digest(buffers)} if buffers else {})


def optimizers(found: Iterable[torch.optim.Optimizer], modules: Iterable[torch.nn.Module]) -> dict[str, str]:
    """`optimizer`: its state by the names of parameters, and the options of its groups but for the learning rate."""
    names = {id(value): f"{n}.{plain_name(name)}" for n, m in enumerate(modules) for name, value in m.named_parameters()}
    state: dict[str, object] = {}
    for number, optimizer in enumerate(found):
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
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["rng.cuda"] = digest(torch.cuda.get_rng_state_all())
    return found


def rows(values: Iterable[object], most: int = 4096) -> list[int]:
    """One number of 60 bits per sample of a batch: what stands in the same row of all tensors whose first size is the batch's."""
    tensors = list(_tensors(values, 0))
    sized = [tensor for tensor in tensors if tensor.dim() > 0]
    if not sized:
        return [int(digest(tensors)[:15], 16)] if tensors else []
    count = sized[0].shape[0]
    if count > most or count == 0:
        return [int(digest(sized)[:15], 16)]
    parts = [(data, len(data) // count) for tensor in sized if tensor.shape[0] == count and len(data := tensor_bytes(tensor))]
    found = []
    for row in range(count):
        one = hashlib.blake2b(digest_size=8)
        for data, size in parts:
            one.update(data[row * size : (row + 1) * size])
        found.append(int(one.hexdigest()[:15], 16))
    return found


def _tensors(value: object, depth: int) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(value[key], depth + 1)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)) and depth < 4:
        if isinstance(value, (list, tuple)) or depth == 0:
            for item in value:
                yield from _tensors(item, depth + 1)
