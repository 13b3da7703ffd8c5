"""Which samples a batch holds: the inputs of the modules that are trained, but for what other modules have made of them.

Responsible for: telling one from the other, by the graph of a tensor or, where it was cut off from it, by its memory. What a
module makes differs as soon as a weight does, and would be taken for other data. Keeps no tensor alive.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import digests


class Inputs:
    """Of one batch at a time.

    Attributes:
        samples: of modules in training mode, in order.
    """

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._others: list[int] = []  # of modules that are not in training mode
        self._computed: list[int] = []  # of modules that were given nothing but what others had made
        self._made: list[StorageWeakRef] = []

    def given(self, values: Iterable[object], *, training: bool) -> list[int]:
        """Before a module is called.

        Args:
            values: what it is called with.
            training: whether it is in training mode.

        Returns:
            Its samples; none where it was given nothing but what others have made.
        """
        everything = list(digests.tensors(values))
        data = [tensor for tensor in everything if tensor.grad_fn is None and not self._is_made(tensor)]
        try:
            found = digests.rows(data or everything)
        except (RuntimeError, TypeError, ValueError):
            return []  # without memory that could be read
        if not data:
            self._computed += found
            return []
        if training:
            self.samples += found
        else:
            self._others += found
        return found

    def made(self, output: object) -> None:
        """After it."""
        for tensor in digests.tensors([output]):
            try:
                self._made.append(_place(tensor))
            except (RuntimeError, TypeError, NotImplementedError):
                continue  # one that has no memory of its own
        self._made = [one for one in self._made if not _is_gone(one)]

    def taken(self) -> list[int]:
        """The samples of the batch that is done; the next one begins."""
        found = self.samples or self._others or self._computed
        self.samples, self._others, self._computed, self._made = [], [], [], []
        return found

    def _is_made(self, tensor: torch.Tensor) -> bool:
        if not self._made:
            return False
        try:
            place = _place(tensor)
        except (RuntimeError, TypeError, NotImplementedError):
            return False
        return any(one == place and not _is_gone(one) for one in self._made)


def _place(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _is_gone(place: StorageWeakRef) -> bool:
    return bool(place.expired())  # type: ignore[no-untyped-call]
