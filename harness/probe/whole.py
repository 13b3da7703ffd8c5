"""Digests of the whole job, which do not depend on the number of its ranks: what can be compared over a change of it.

A digest is a number modulo 2^64: the sum of one number per element of each tensor, made of the tensor's name, dtype and
shape, the element's place in the whole tensor, and its bits; and of one number for the plain values. So ranks that each
hold a part of a tensor need not exchange anything: each logs the sum over what it alone holds (`own`), and over what every
rank holds (`common`), and `common` plus the sum of all ranks' `own` is the digest of the whole, as that rank sees it.

Not covered: streams of random numbers that each rank has of its own. A sum is easier to forge than a cryptographic hash;
it is meant for what is forgotten and mixed up, not for what is done on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch

from harness.probe.digest import Component, digest_value
from harness.reference.tensors import LocalTensor

_MODULUS = 2**64
_Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def whole_digests(components: Mapping[str, Component], *, shared_rng: bool) -> dict[str, dict[str, str]]:
    """Return `common` and `own`: component → hex of 64 bits; changes nothing and exchanges nothing.

    Args:
        components: What the job consists of (`harness.probe.digest.components_of`).
        shared_rng: Whether all ranks draw from the same streams, which then are a part of the whole.

    Of an optimizer whose state is split by another scheme than the moments of `AdamW` (ZeRO-1), the master copy is left
    out: it is made of the model on every load.
    """
    common: dict[str, int] = {}
    own: dict[str, int] = {}
    for name, component in components.items():
        if name.startswith("rng.") and not shared_rng:
            continue
        common[name] = 0 if component.rest is None else int(digest_value(component.rest), 16)
        for tensor_name, tensor in component.tensors.items():
            side = own if tensor.is_split else common
            side[name] = (side.get(name, 0) + sum_of(tensor_name, tensor)) % _MODULUS
    return {"common": _in_hex(common), "own": _in_hex(own)}


def sum_of(name: str, tensor: LocalTensor) -> int:
    """Return the sum over the elements that this rank holds, modulo 2^64."""
    size = tensor.values.element_size()
    flat = tensor.values.detach().cpu().contiguous()
    bits = flat.view(torch.uint8).numpy().view(_WORDS[size]).astype(np.uint64)
    # Small tensors, of which a job has many, are in the same places at every save.
    places = _kept_places if len(bits) <= _KEPT_ELEMENTS else _places
    return int(
        _mixed(places(name, tensor.values.dtype, tuple(tensor.shape), tensor.start, len(bits)) ^ bits).sum(dtype=np.uint64)
    )


def _places(name: str, dtype: torch.dtype, shape: tuple[int, ...], start: int, number: int) -> _Numbers:
    """One number for each element of a stretch of a tensor, made of all that tells it from any other."""
    key = int(digest_value([name, str(dtype), list(shape)]), 16)
    return _mixed(np.arange(start, start + number, dtype=np.uint64) + np.uint64(key))


_KEPT_ELEMENTS = 1 << 14
_kept_places = lru_cache(maxsize=1024)(_places)


def _mixed(numbers: _Numbers) -> _Numbers:
    """Spread every bit of each number over all of its 64.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014 (the finalizer of SplitMix64).
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _in_hex(numbers: dict[str, int]) -> dict[str, str]:
    return {name: f"{number:016x}" for name, number in numbers.items()}
