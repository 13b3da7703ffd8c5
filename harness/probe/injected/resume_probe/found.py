"""The models, optimizers, schedulers and scalers of a foreign job, found among the living objects.

Responsible for: finding them without a patch of their classes, in an order that two runs of one program share. What it keeps
are weak references.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Found:
    """Looks when it is made.

    Args:
        plain: makes a parameter's name the bare model's.
    """

    def __init__(self, plain: Callable[[str], str] = str) -> None:
        modules, optimizers, schedulers, scalers = _living()
        optimizers = _training([one for one in optimizers if not _wraps(one)], modules)
        owned = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        owners = _owners(modules, owned)
        inner = {id(child) for one in owners for child in _children(one)}
        roots = sorted((one for one in owners if id(one) not in inner), key=_order_of_module)
        optimizers.sort(key=_order_of_optimizer)
        self._owners = {id(one): weakref.ref(one) for one in owners}
        self._averages = [weakref.ref(one) for one in _like(roots, modules, owned)]
        self._roots = [weakref.ref(one) for one in roots]
        self._optimizers: list[weakref.ref[Optimizer]] = [weakref.ref(one) for one in optimizers]
        self._schedulers = [weakref.ref(one) for one in sorted(schedulers, key=lambda one: type(one).__name__)]
        # Of ZeRO the inner optimizer of each rank has some of the parameters only.
        self.is_partial = any(
            any(held is inner for held in outer.__dict__.values()) and _num_parameters(inner) < _num_parameters(outer)
            for outer in optimizers
            for inner in optimizers
        )
        self._scalers = [weakref.ref(one) for one in scalers]
        # FSDP2 puts whole parameters in the place of its own for as long as a module is gathered: those that are trained count.
        self._trained: dict[str, weakref.ref[torch.Tensor]] = {
            f"{number}.{plain(name)}": weakref.ref(value)
            for number, root in enumerate(roots)
            for name, value in root.named_parameters()
            if id(value) in owned
        }

    def trains(self, module: torch.nn.Module) -> bool:
        """Whether an optimizer has parameters of this module."""
        reference = self._owners.get(id(module))
        return reference is not None and reference() is module

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was there."""
        return any(one() is optimizer for one in self._optimizers)

    def complete(self) -> bool:
        """Whether there was something, and all of it still lives."""
        living = [one() for one in self._roots], [one() for one in self._optimizers]
        return bool(self._optimizers) and all(None not in some for some in living)

    def trained(self, name: str, now: torch.Tensor, owned: set[int]) -> torch.Tensor:
        """The parameter by that name that an optimizer has; the one that stands there now, if that is none other's."""
        first = self._trained.get(name)
        one = first() if first is not None and id(now) not in owned else None
        return one if one is not None and id(one) in owned else now

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The outermost modules that are trained."""
        return _alive(self._roots)

    @property
    def averages(self) -> list[torch.nn.Module]:
        """The outermost modules whose parameters are shaped like those of a trained one, and which are not trained."""
        return _alive(self._averages)

    def shapes(self) -> set[tuple[tuple[int, ...], ...]]:
        """Of the parameters of each trained model, and of parameters and buffers together, sorted."""
        found = set()
        for root in self.roots:
            parameters = [tuple(one.shape) for one in root.parameters()]
            found |= {tuple(sorted(parameters)), tuple(sorted([*parameters, *(tuple(one.shape) for one in root.buffers())]))}
        return found - {()}

    def tensors(self) -> list[torch.Tensor]:
        """All that belong to models, averages and optimizers: they are known without a name of a variable."""
        found = [one for module in (*self.roots, *self.averages) for one in (*module.parameters(), *module.buffers())]
        for optimizer in self.optimizers:
            states = [state for state in optimizer.state.values() if isinstance(state, dict)]
            found += [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
            found += [one for group in optimizer.param_groups for one in group["params"]]
        return found + [one.grad for one in found if one.requires_grad and one.grad is not None]

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


def _living() -> tuple[list[torch.nn.Module], list[Optimizer], list[Any], list[Any]]:
    """Modules, optimizers, schedulers and scalers among the objects that nobody has collected.

    Nothing is collected for this: at the end of a program that had nothing left to do, its job is garbage, and is looked for.
    """
    found: tuple[list[Any], list[Any], list[Any], list[Any]] = ([], [], [], [])
    # Each class is asked once: a job's heap has millions of objects, of few classes.
    lists: dict[type, list[Any] | None] = {}
    for one in gc.get_objects():
        # By type, not by isinstance: that asks an object for its __class__, which lazy modules answer by importing.
        kind = type(one)
        if kind not in lists:
            number = _sort(kind)
            lists[kind] = None if number is None else found[number]
        mine = lists[kind]
        if mine is not None:
            mine.append(one)
    return found


def _sort(kind: type) -> int | None:
    """Which of the four lists of `_living` objects of this class belong to."""
    for number, base in enumerate((torch.nn.Module, Optimizer, LRScheduler)):
        if issubclass(kind, base):
            return number
    return 3 if kind.__name__.endswith("GradScaler") and hasattr(kind, "is_enabled") else None


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [one for reference in references if (one := reference()) is not None]


def _training(optimizers: list[Optimizer], modules: list[torch.nn.Module]) -> list[Optimizer]:
    """Those that have a parameter of a living module: one that was unpickled with a scheduler drives nothing.

    All of them where none has: parameters need no module.
    """
    held = {id(p) for one in modules for p in (one.__dict__.get("_parameters") or {}).values()}
    found = [one for one in optimizers if any(id(p) in held for group in one.param_groups for p in group["params"])]
    return found or optimizers


def _owners(modules: list[torch.nn.Module], owned: set[int]) -> list[torch.nn.Module]:
    """The modules that hold one of these parameters, or a module that does; each is looked at once."""
    parents: dict[int, list[torch.nn.Module]] = {}
    for one in modules:
        for child in _children(one):
            parents.setdefault(id(child), []).append(one)
    found = {id(one) for one in modules if any(id(p) in owned for p in (one.__dict__.get("_parameters") or {}).values())}
    waiting = list(found)
    while waiting:
        new = {id(one) for one in parents.get(waiting.pop(), ())} - found
        found |= new
        waiting += new
    return [one for one in modules if id(one) in found]


def _like(roots: list[torch.nn.Module], modules: list[torch.nn.Module], owned: set[int]) -> list[torch.nn.Module]:
    """The outermost modules that no optimizer has, with as many parameters, of the same shapes, as a root."""
    wanted = {tuple(sorted(tuple(p.shape) for p in root.parameters())) for root in roots} - {()}
    # To look at the parameters of every module of a large model would take long: their number comes first.
    counts = {len(shapes) for shapes in wanted}
    trained = {id(module) for root in roots for module in root.modules()}
    found = []
    for one in modules:
        if id(one) in trained or not one.__dict__.get("_modules", one.__dict__.get("_parameters")):
            continue
        parameters = list(one.parameters())
        if len(parameters) not in counts or owned & {id(p) for p in parameters}:
            continue
        if tuple(sorted(tuple(p.shape) for p in parameters)) in wanted:
            found.append(one)
    inner = {id(child) for one in found for child in one.modules() if child is not one}
    return sorted((one for one in found if id(one) not in inner), key=_order_of_module)


def _children(module: torch.nn.Module) -> list[torch.nn.Module]:
    return [one for one in (module.__dict__.get("_modules") or {}).values() if one is not None and one is not module]


def _wraps(optimizer: Any) -> bool:
    facts = optimizer.__dict__
    return "param_groups" not in facts or facts.get("optimizer", facts.get("optimizers")) is not None


def _order_of_module(module: torch.nn.Module) -> tuple[str, int]:
    return type(module).__name__, sum(p.numel() for p in module.parameters())


def _order_of_optimizer(optimizer: Optimizer) -> tuple[str, int]:
    return type(optimizer).__name__, sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def _num_parameters(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)
