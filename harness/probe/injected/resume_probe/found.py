"""The models, optimizers, schedulers and scalers of a foreign job, found among the living objects.

Responsible for: finding them without a patch of their classes, in an order that two runs of one program share. What it keeps
are weak references.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Found:
    """Looks when it is made."""

    def __init__(self) -> None:
        # By type, not by isinstance: that asks an object for its __class__, which lazy modules answer by importing.
        everything = [(one, type(one)) for one in gc.get_objects()]
        optimizers = [one for one, kind in everything if issubclass(kind, Optimizer) and not _wraps(one)]
        owned = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        modules = [one for one, kind in everything if issubclass(kind, torch.nn.Module)]
        owners = [one for one in modules if any(id(p) in owned for p in one.parameters())]
        inner = {id(child) for one in owners for child in one.modules() if child is not one}
        roots = sorted((one for one in owners if id(one) not in inner), key=_order_of_module)
        optimizers.sort(key=_order_of_optimizer)
        schedulers = [one for one, kind in everything if issubclass(kind, LRScheduler)]
        scalers = [one for one, kind in everything if kind.__name__.endswith("GradScaler") and hasattr(one, "is_enabled")]
        self._owners = {id(one) for one in owners}
        self._roots = [weakref.ref(one) for one in roots]
        self._optimizers = [weakref.ref(one) for one in optimizers]
        self._schedulers = [weakref.ref(one) for one in sorted(schedulers, key=lambda one: type(one).__name__)]
        self._scalers = [weakref.ref(one) for one in scalers]

    def trains(self, module: torch.nn.Module) -> bool:
        """Whether an optimizer has parameters of this module."""
        return id(module) in self._owners

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was there."""
        return any(one() is optimizer for one in self._optimizers)

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The outermost modules that are trained."""
        return _alive(self._roots)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that do the work, not what wraps them."""
        return _alive(self._optimizers)

    @property
    def schedulers(self) -> list[Any]:
        """Of learning rates."""
        return _alive(self._schedulers)

    @property
    def scalers(self) -> list[Any]:
        """Of losses."""
        return _alive(self._scalers)


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [one for reference in references if (one := reference()) is not None]


def _wraps(optimizer: Any) -> bool:
    inside = optimizer.__dict__.get("optimizer", optimizer.__dict__.get("optimizers"))
    return not hasattr(optimizer, "param_groups") or inside is not None


def _order_of_module(module: torch.nn.Module) -> tuple[str, int]:
    return type(module).__name__, sum(p.numel() for p in module.parameters())


def _order_of_optimizer(optimizer: Optimizer) -> tuple[str, int]:
    return type(optimizer).__name__, sum(p.numel() for group in optimizer.param_groups for p in group["params"])
