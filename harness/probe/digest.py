"""Digests of a training job's state, one per component, to compare what was saved with what was loaded.

Two states have the same digest if and only if (but for chance, 1 in 2^64) every tensor has the same dtype, shape and
bytes under the same name, and every plain value is equal. Taking a digest changes nothing and draws from no generator.

Not covered: states on different numbers of ranks (`harness.probe.whole`); two states that differ in bytes but not in
meaning, such as 0.0 and -0.0, count as different.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.reference.state import Training, capture_rank_rng
from harness.reference.tensors import LocalTensor, group_options, live_tensors

DIGEST_SIZE_BYTES = 8


def digest_value(value: Any) -> str:
    """Return the digest of a value of mappings, sequences, tensors, numbers, text, and None, in hex.

    Mappings are taken in the order of their keys' text, so that the order of insertion does not matter.

    Raises:
        TypeError: It holds something else, whose content could not be told.
    """
    state = hashlib.blake2b(digest_size=DIGEST_SIZE_BYTES)
    _feed(state, value)
    return state.hexdigest()


@dataclass(frozen=True)
class Component:
    """A part of the state: named tensors (this rank's part of each), and plain values; either may be absent."""

    tensors: dict[str, LocalTensor]
    rest: Any = None


def components_of(training: Training) -> dict[str, Component]:
    """Return every component that the job has, by the names of docs/event-log.md.

    The optimizer's state is taken by parameter name, together with the options of each group, so that the order in
    which parameters were passed does not matter but whose moments are whose does.
    """
    names = {f"model.{name}" for name, _ in training.model.named_buffers()}
    live = live_tensors(training)
    rng, state = capture_rank_rng(training), training.state

    def below(part: str) -> dict[str, LocalTensor]:
        return {name: tensor for name, tensor in live.items() if name.startswith(part) and name not in names}

    found = {
        "model": Component(below("model.")),
        "buffers": Component({name: live[name] for name in names}),
        "optimizer": Component(below("optimizer."), group_options(training.model, training.optimizer)),
        "ema": Component(below("ema.")),
        "scheduler": Component({}, training.scheduler.state_dict()),
        "scaler": Component({}, None if training.scaler is None else training.scaler.state_dict()),
        "rng.python": Component({}, rng["python"]),
        "rng.numpy": Component({}, rng["numpy"]),
        "rng.torch": Component({}, [rng["torch"], rng["cuda"]]),
        "rng.noise": Component({}, rng["noise"]),
        "data": Component({}, [state.epoch, state.batch_in_epoch, training.config.seed, state.epoch_order]),
        "counters": Component({}, [state.batch, state.step, state.amp.state_dict()]),
        "counters.loss_history": Component({}, state.loss_history),
    }
    return {name: component for name, component in found.items() if component.tensors or component.rest is not None}


def digest_components(components: Mapping[str, Component]) -> dict[str, str]:
    """Return the digest of every component (`components_of`); of what is split over the ranks, this rank's part is taken."""
    return {
        name: digest_value([{n: [t.shape, t.start, t.values] for n, t in component.tensors.items()}, component.rest])
        for name, component in components.items()
    }


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        state.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        state.update(flat.view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        state.update(f"mapping {len(value)} ".encode())
        for key in sorted(value, key=str):
            state.update(f"{key!r} ".encode())
            _feed(state, value[key])
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        state.update(f"sequence {len(value)} ".encode())
        for item in value:
            _feed(state, item)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = value.hex() if isinstance(value, float) else repr(value)
        state.update(f"{type(value).__name__} {text} ".encode())
    else:
        raise TypeError(f"cannot digest a {type(value).__name__}")
