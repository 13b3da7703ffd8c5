"""Checkpoints of older schemas, brought up to date on load.

The loader branches on the string `schema`. A checkpoint of a schema that it does not know is refused: guessing at the
meaning of fields would resume something else without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.reference.errors import mismatch
from harness.reference.rng import derive_seed
from harness.reference.skips import AmpTrainState
from harness.reference.state import CHECKPOINT_SCHEMA


def migrate_v0(payload: dict[str, Any]) -> dict[str, Any]:
    """Bring a payload of `ckpt.v0` to `ckpt.v1`.

    v0 kept the counters at the top (`step`, `batch`, `epoch`, `batch_in_epoch`, `loss_history`), knew neither the average
    of the weights nor the history of skips, and no order but the one by seed and epoch. Its input noise came from torch's
    generator; the noise's own begins here, the same whenever this is repeated.
    """
    counters = {key: payload[key] for key in ("batch", "step", "loss_history")}
    job = {"model": "gpt", "sampler": "distributed", "accumulate": 1, **payload["job"]}
    position = {"epoch": payload["epoch"], "batch_in_epoch": payload["batch_in_epoch"], "sampler_seed": job["seed"]}
    noise = [
        torch.Generator().manual_seed(derive_seed(job["seed"], payload["step"], rank)) for rank in range(len(payload["rng"]))
    ]
    moved = {"step", "batch", "epoch", "batch_in_epoch", "loss_history"}
    return {
        **{key: value for key, value in payload.items() if key not in moved},
        "schema": CHECKPOINT_SCHEMA,
        "state": counters,
        "data": {**position, "epoch_order": None},
        "job": job,
        "amp": AmpTrainState().state_dict(),
        "ema": {},
        "rng": [{"noise": fresh.get_state(), **saved} for fresh, saved in zip(noise, payload["rng"], strict=True)],
    }


MIGRATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"ckpt.v0": migrate_v0}


def migrate(payload: dict[str, Any], path: object) -> dict[str, Any]:
    """Return a payload in the present schema.

    Raises:
        CheckpointError: Unknown schema, or an older one without the fields that it must have.
    """
    schema = payload.get("schema")
    if schema == CHECKPOINT_SCHEMA:
        return payload
    if not isinstance(schema, str) or schema not in MIGRATIONS:
        known = ", ".join([CHECKPOINT_SCHEMA, *MIGRATIONS])
        raise mismatch("unknown schema", path, known, repr(schema))
    try:
        return MIGRATIONS[schema](payload)
    except (KeyError, TypeError) as error:
        raise mismatch("incomplete", path, f"the fields of {schema}", f"none of {error}") from error
