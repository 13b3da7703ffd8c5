"""Numeric faults: a bad batch, made by changing the logits of chosen ranks at chosen batches.

Fault model: the fault belongs to the data. It strikes whenever the batch is taken, in every attempt, and in the
uninterrupted run as well. It is described by the environment variable `HARNESS_NUMERIC_FAULTS` (docs/event-log.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

VARIABLE = "HARNESS_NUMERIC_FAULTS"
OVERFLOW_FACTOR = 1e5
SPIKE_FACTOR = 1000.0


def _scale_gradient(logits: Tensor, factor: float) -> Tensor:
    # Without gradients (an evaluation, a planted detach) there is nothing to strike.
    if logits.requires_grad:
        logits.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
    return logits


# Effect → what it does to the logits. An overflow is past float16's 65504 and harmless in float32.
_EFFECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "overflow": lambda logits: logits * OVERFLOW_FACTOR,
    "nan": lambda logits: logits * math.nan,
    "nonfinite-grad": lambda logits: _scale_gradient(logits, math.inf),
    "spike": lambda logits: _scale_gradient(logits, SPIKE_FACTOR),
}


@dataclass(frozen=True)
class NumericFault:
    """One bad batch, or several in a row.

    Attributes:
        effect: `overflow`, `nan`, `nonfinite-grad` or `spike`.
        ranks: The ranks it strikes, or None for all.
        batch: The first bad batch, from 1.
        times: How many batches in a row are bad.
        micro_batch: Which part of each of them is, from 1, or None for all parts.
    """

    effect: str
    ranks: tuple[int, ...] | None
    batch: int
    times: int
    micro_batch: int | None = None

    def strikes(self, batch: int, rank: int, micro_batch: int = 1) -> bool:
        """Return whether this part of this batch is bad on this rank."""
        hit = self.batch <= batch < self.batch + self.times and self.micro_batch in (None, micro_batch)
        return hit and (self.ranks is None or rank in self.ranks)


def parse_numeric_faults(text: str) -> tuple[NumericFault, ...]:
    """Read the JSON list of `HARNESS_NUMERIC_FAULTS`; empty text is an empty list.

    Raises:
        ValueError: It is not such a list; the text names every problem. A fault that was not understood must not
            pass for one that was planted.
    """
    if not text.strip():
        return ()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{VARIABLE} is not JSON: {error}") from error
    if not isinstance(found, list):
        raise ValueError(f"{VARIABLE} must be a list, found {type(found).__name__}")
    problems = [problem for number, entry in enumerate(found) for problem in _problems(number, entry)]
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(
        NumericFault(
            entry["effect"],
            None if entry["ranks"] is None else tuple(entry["ranks"]),
            entry["batch"],
            entry["times"],
            entry.get("micro_batch"),
        )
        for entry in found
    )


def _problems(number: int, entry: Any) -> list[str]:
    where = f"{VARIABLE}[{number}]"
    if not isinstance(entry, dict) or entry.keys() - {"micro_batch"} != {"effect", "ranks", "batch", "times"}:
        return [f"{where} must have exactly effect, ranks, batch and times, and perhaps micro_batch, found {entry!r}"]
    problems = []
    if entry["effect"] not in _EFFECTS:
        problems.append(f"{where}.effect must be one of {', '.join(_EFFECTS)}, found {entry['effect']!r}")
    ranks = entry["ranks"]
    if ranks is not None and not (isinstance(ranks, list) and all(_is_count(rank, 0) for rank in ranks)):
        problems.append(f"{where}.ranks must be null or a list of ranks, found {ranks!r}")
    problems += [
        f"{where}.{key} must be a whole number from 1, found {entry[key]!r}"
        for key in ("batch", "times", "micro_batch")
        if key in entry and not _is_count(entry[key], 1)
    ]
    return problems


def _is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def apply_numeric_faults(faults: tuple[NumericFault, ...], logits: Tensor, batch: int, rank: int, micro_batch: int = 1) -> Tensor:
    """Return the logits as the faults make them.

    Args:
        faults: All that are planted.
        logits: Of this rank's samples, any shape and dtype; not changed in place.
        batch: Number of the batch, from 1.
        rank: This rank.
        micro_batch: The part of the batch that these logits are of, from 1.
    """
    for fault in faults:
        if fault.strikes(batch, rank, micro_batch):
            logits = _EFFECTS[fault.effect](logits)
    return logits
