"""The whole state of a job as one payload of plain types and tensors, for formats in which one rank writes.

`collect_payload` puts it together whatever splits the job over its ranks, `apply_payload` takes this rank's part back.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.reference.comm import gather_values
from harness.reference.errors import mismatch
from harness.reference.formats import check_names
from harness.reference.migration import migrate
from harness.reference.state import (
    Training,
    apply_rng_states,
    apply_small_state,
    capture_rank_rng,
    check_job,
    small_state,
)
from harness.reference.tensors import (
    Filler,
    LocalTensor,
    Piece,
    check_layout,
    gather_whole,
    group_options,
    live_tensors,
    load_group_options,
)
from harness.reference.zero1 import ShardedAdamW

KEYS = frozenset(
    {"schema", "world_size", "state", "data", "job", "scheduler", "scaler", "amp", "model", "optimizer", "ema", "rng"}
)


def collect_payload(training: Training) -> dict[str, Any]:
    """Return everything a checkpoint holds; the tensors are complete on rank 0 only. Collective."""
    tensors = gather_whole(live_tensors(training))
    return {
        **small_state(training),
        "model": _below("model.", tensors),
        "optimizer": {
            "state": _by_parameter(_below("optimizer.", tensors)),
            "param_groups": group_options(training.model, training.optimizer),
        },
        "ema": _below("ema.", tensors),
        "rng": gather_values(capture_rank_rng(training)),
    }


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _by_parameter(flat: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    state: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in flat.items():
        name, key = full_name.rsplit(".", 1)
        state.setdefault(name, {})[key] = tensor
    return state


def check_payload(payload: Any, path: Path) -> dict[str, Any]:
    """Check that a decoded file is a payload of this trainer, and bring an older schema up to date.

    Raises:
        CheckpointError: It is something else, of unknown schema, or without one of its parts.
    """
    if not isinstance(payload, dict):
        raise mismatch("cannot decode", path, "a dict", type(payload).__name__)
    found: dict[str, Any] = migrate(payload, path)
    check_names(found, KEYS, path)
    return found


def apply_payload(training: Training, payload: dict[str, Any], path: Path, omitted: Collection[str] = ()) -> str | None:
    """Give a rank its part of a checked payload.

    Returns:
        A warning, or None.

    Raises:
        CheckpointError: It is another model's or another job's; options, names and shapes are compared before anything changes.
    """
    check_job(training.config, payload["job"], path)
    saved: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in payload["model"].items()}
    for name, values in payload["optimizer"]["state"].items():
        saved |= {f"optimizer.{name}.{key}": tensor for key, tensor in values.items()}
    saved |= {f"ema.{name}": tensor for name, tensor in payload["ema"].items()}
    live = live_tensors(training)
    check_layout(live, {name: tuple(tensor.shape) for name, tensor in saved.items()}, path)
    filler = Filler(kept(training, live, omitted), path)
    filler.fill(Piece(name, 0, tensor.reshape(-1)) for name, tensor in saved.items())
    filler.finish()
    settle(training, payload["optimizer"]["param_groups"], path, omitted)
    apply_small_state(training, payload, path, omitted)
    # The generators come last, so that nothing done while loading can move them.
    return apply_rng_states(training, payload["rng"], omitted)


def kept(training: Training, live: dict[str, LocalTensor], omitted: Collection[str]) -> dict[str, LocalTensor]:
    """Leave out the tensors of the parts that a planted defect does not restore; or, as another one does, mix them up."""
    buffers = {f"model.{name}" for name, _ in training.model.named_buffers()} if "buffers" in omitted else set()
    found = {n: t for n, t in live.items() if n.partition(".")[0] not in omitted and n not in buffers}
    if "moments-by-number" not in training.config.defect:
        return found
    return {_neighbour(name): tensor for name, tensor in found.items()}


def _neighbour(name: str) -> str:
    """The tensor that stands in this one's place if the two blocks change places in the optimizer's order."""
    for one, other in (("optimizer.blocks.0.", "optimizer.blocks.1."), ("optimizer.blocks.1.", "optimizer.blocks.0.")):
        if name.startswith(one):
            return other + name.removeprefix(one)
    return name


def settle(training: Training, groups: list[dict[str, Any]], path: Path, omitted: Collection[str]) -> None:
    """Put back the optimizer's options, once the tensors are in place."""
    if "optimizer" not in omitted:
        load_group_options(training.model, training.optimizer, groups, path)
    if isinstance(training.optimizer, ShardedAdamW):
        training.optimizer.adopt_weights()
