"""Digests of the whole of a foreign job, to be compared over a change of the number of its ranks.

A digest is a number modulo 2^64: the sum, over the elements of every tensor, of a number made of the tensor's name, dtype and
shape, the element's place in the whole tensor, and its bits; and a number for each plain value. A rank that holds a part of a
tensor sums what it alone holds (`own`); what every rank holds is `common`. The sum of `common` and all ranks' `own` is the whole.

Standard library and torch only, since a trainer's environment may have no numpy. Not covered: generators, of which each rank has
its own; tensors that are split in a way that is not by their dimensions.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch

from . import digests
from .content import Content

_MODULUS = 2**64
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements: what is made of them takes eight bytes each.
_AT_ONCE = 1 << 20
# Of more elements than these the sums would take seconds.
_MOST_ELEMENTS = 1 << 25
# Constants of SplitMix64's finalizer (Steele, Lea and Flood, 2014), as signed numbers: arithmetic wraps around all the same.
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - _MODULUS, 0x94D049BB133111EB - _MODULUS


def whole(content: Content, partial: bool) -> dict[str, dict[str, str]]:
    """`common` and `own`: component → hex of 64 bits; nothing of a very large job.

    Args:
        content: what the job consists of.
        partial: whether this rank's optimizer has the state of some parameters only, and other ranks that of the others.
    """
    if sum(one.numel() for part in content.values() for one in part.values() if isinstance(one, torch.Tensor)) > _MOST_ELEMENTS:
        return {}
    common: dict[str, int] = {}
    own: dict[str, int] = {}
    for component, part in content.items():
        if component.startswith("rng"):
            continue
        common.setdefault(component, 0)
        for name, value in part.items():
            if component == "scheduler" and not name.startswith("lr."):
                continue  # what it counts may depend on the number of ranks, the rate may not
            number, is_split = _number_of(name, value)
            # The options of groups are the same on all ranks, the state of a parameter is where the parameter is.
            side = own if is_split or (partial and component == "optimizer" and ":" in name) else common
            side[component] = (side.get(component, 0) + number) % _MODULUS
    return {"common": _in_hex(common), "own": _in_hex(own)}


def _number_of(name: str, value: object) -> tuple[int, bool]:
    if not isinstance(value, torch.Tensor):
        return int(digests.digest([name, value])[:16], 16), False
    placements = getattr(value, "placements", ())
    if not any(one.is_shard() for one in placements):
        return _sum(name, value, digests.local(value), 0), False
    mesh: Any = getattr(value, "device_mesh", None)
    coordinate = mesh.get_coordinate() or ()
    if any(place for place, one in zip(coordinate, placements, strict=False) if not one.is_shard()):
        return 0, True  # a copy of what another rank says already
    return _sum(name, value, digests.local(value), _places(value, mesh, placements)), True


def _places(tensor: torch.Tensor, mesh: Any, placements: Any) -> int | torch.Tensor:
    """The places in the whole tensor of the elements that are here: the first, if the others follow one another, or all."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    strides = [math.prod(tensor.shape[dimension + 1 :]) for dimension in range(tensor.dim())]
    if tuple(shape[1:]) == tuple(tensor.shape[1:]):
        return int(offset[0]) * strides[0]
    place = torch.zeros(tuple(shape), dtype=torch.int64, device="cpu")
    for dimension, stride in enumerate(strides):
        along = torch.arange(offset[dimension], offset[dimension] + shape[dimension], device="cpu") * stride
        place += along.view([-1 if one == dimension else 1 for one in range(tensor.dim())])
    return place.flatten()


def _sum(name: str, whole_tensor: torch.Tensor, here: torch.Tensor, places: int | torch.Tensor) -> int:
    flat = here.reshape(-1)
    if flat.is_complex():
        flat, name = torch.view_as_real(flat).reshape(-1), f"{name} in halves"
        places = 2 * places if isinstance(places, int) else torch.stack([2 * places, 2 * places + 1], 1).flatten()
    bits = flat.view(_WORDS[flat.element_size()])
    facts = f"{name}|{whole_tensor.dtype}|{tuple(whole_tensor.shape)}"
    key = int(hashlib.blake2b(facts.encode(), digest_size=7).hexdigest(), 16)
    total = 0
    for start in range(0, flat.numel(), _AT_ONCE):
        some = bits[start : start + _AT_ONCE].to(torch.int64)
        if isinstance(places, int):
            at = torch.arange(places + start, places + start + some.numel(), dtype=torch.int64, device="cpu")
        else:
            at = places[start : start + _AT_ONCE]
        total += int(_mixed(_mixed(at + key) ^ some).sum().item())
    return total % _MODULUS


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Spreads every bit of each number over all of its 64."""
    numbers = (numbers ^ _shifted(numbers, 30)) * _FIRST
    numbers = (numbers ^ _shifted(numbers, 27)) * _SECOND
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """To the right, with zeros: torch's shift of signed numbers repeats the sign."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)


def _in_hex(numbers: dict[str, int]) -> dict[str, str]:
    return {name: f"{number:016x}" for name, number in numbers.items()}
