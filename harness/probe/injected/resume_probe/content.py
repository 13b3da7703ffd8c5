"""What a foreign job consists of: component → name → value, as it stands at this moment.

Responsible for: names of parameters that do not depend on wrappers, and which value belongs to which component. Reads, and
changes nothing. Not responsible for: digests (`digests`, `whole`), and what stands in no state dict (`attributes`).
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable
from typing import Any

import torch

from .found import Found

Content = dict[str, dict[str, object]]
# What a wrapper puts before the name of a parameter.
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")
# What schedulers count of themselves, and no learning rate depends on.
_NOT_STATE = ("_step_count", "verbose", "_get_lr_called_within_step", "_is_initial")
# Stands in a group that no scheduler has met, or not; and is the scheduler's.
_NOT_OPTIONS = ("params", "lr", "initial_lr")


def plain_name(name: str) -> str:
    """The name of a parameter as the bare model has it."""
    return _WRAPPERS.sub(r"\1", name).replace("..", ".").strip(".")


def content(found: Found) -> Content:
    """All components that the job has now."""
    named = _parameters(found)
    parts: Content = {
        "model": dict(named),
        "model.ties": _ties(found),
        "buffers": _buffers(found),
        "optimizer": _optimizers(found, named),
        "scheduler": _schedules(found),
        "scaler": _scalers(found.scalers),
        "ema": _averages(found),
        **generators(),
    }
    return {name: part for name, part in parts.items() if part}


def gradients(found: Found) -> dict[str, object]:
    """What has been accumulated so far, by the names of parameters."""
    return {name: value.grad for name, value in _parameters(found).items() if value.grad is not None}


def weights(found: Found) -> list[torch.Tensor]:
    """The parameters that are trained."""
    return list(_parameters(found).values())


def _parameters(found: Found) -> dict[str, torch.Tensor]:
    owned = {id(p) for one in found.optimizers for group in one.param_groups for p in group["params"]}
    return {
        name: found.trained(name, value, owned)
        for number, module in enumerate(found.roots)
        for full, value in module.named_parameters()
        for name in [f"{number}.{plain_name(full)}"]
    }


def _ties(found: Found) -> dict[str, object]:
    """The first name of a parameter → the other names under which the very same one is used."""
    ties: dict[str, list[str]] = {}
    first: dict[int, str] = {}
    for number, module in enumerate(found.roots):
        for full, value in module.named_parameters(remove_duplicate=False):
            name = f"{number}.{plain_name(full)}"
            known = first.setdefault(id(value), name)
            if known != name:
                ties.setdefault(known, []).append(name)
    return dict(ties)


def _buffers(found: Found) -> dict[str, object]:
    return {
        f"{number}.{plain_name(name)}": value
        for number, module in enumerate(found.roots)
        for name, value in module.named_buffers()
    }


def _optimizers(found: Found, named: dict[str, torch.Tensor]) -> dict[str, object]:
    """State by the names of parameters, and the options of the groups but for the learning rate."""
    names = {id(value): name for name, value in named.items()}
    state: dict[str, object] = {}
    for number, optimizer in enumerate(found.optimizers):
        for place, group in enumerate(optimizer.param_groups):
            state[f"{number}.{place}"] = {key: value for key, value in group.items() if key not in _NOT_OPTIONS}
            for index, parameter in enumerate(group["params"]):
                name = f"{number}:{names.get(id(parameter), f'{place}.{index}')}"
                own = optimizer.state.get(parameter, {})
                # Also of a parameter without state: that it has none is something that can be lost.
                state[name] = sorted(map(str, own))
                state.update((f"{name}.{key}", value) for key, value in own.items())
    return state


def _schedules(found: Found) -> dict[str, object]:
    """The learning rates, and what the schedulers count."""
    rates: dict[str, object] = {
        f"lr.{number}.{place}": _number(group.get("lr"))
        for number, optimizer in enumerate(found.optimizers)
        for place, group in enumerate(optimizer.param_groups)
    }
    places = {id(one): place for place, one in enumerate(found.optimizers)}
    for number, scheduler in enumerate(found.schedulers):
        # None where it drives an optimizer that trains nothing, such as one that was loaded with it.
        rates[f"{number}.drives"] = places.get(id(_driven(scheduler)))
        for key, value in scheduler.state_dict().items():
            if key not in _NOT_STATE and _is_plain(value):
                rates[f"{number}.{key}"] = value
    return rates


def _driven(scheduler: Any) -> Any:
    """The optimizer of a scheduler, or the one that it wraps."""
    optimizer = getattr(scheduler, "optimizer", None)
    facts = getattr(optimizer, "__dict__", {})
    return facts.get("optimizer", optimizer) if "param_groups" not in facts else optimizer


def _number(value: Any) -> float:
    return float(value) if value is not None else -1.0


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


def _scalers(scalers: Iterable[Any]) -> dict[str, object]:
    """Of those that are switched on."""
    return {f"{n}.{key}": value for n, one in enumerate(scalers) if one.is_enabled() for key, value in one.state_dict().items()}


def _averages(found: Found) -> dict[str, object]:
    """Parameters and buffers of models like the trained one that no optimizer has: averages of it."""
    values: dict[str, object] = {}
    for number, module in enumerate(found.averages):
        for named in (module.named_parameters(), module.named_buffers()):
            values.update((f"{number}.{plain_name(name)}", value) for name, value in named)
    return values


def generators() -> Content:
    """`rng.python`, `rng.torch`, and `rng.numpy` and `rng.cuda` where they are in use."""
    found: Content = {"rng.python": {"": random.getstate()}, "rng.torch": {"": torch.get_rng_state()}}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, *rest = numpy.random.get_state()
        found["rng.numpy"] = {"": [name, keys.tobytes(), *rest]}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of this device only: to ask another one would start it
        found["rng.cuda"] = {"": torch.cuda.get_rng_state()}
    return found


def values(parts: Content) -> dict[str, float]:
    """The plain numbers of schedules and scalers, which say by themselves what went wrong."""
    return {
        f"{name}.{key}": float(value)
        for name in ("scheduler", "scaler")
        for key, value in parts.get(name, {}).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
