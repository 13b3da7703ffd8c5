"""What the ranks of a job say of the whole of it, read off their `state` records (docs/event-log.md, `common` and `own`).

Responsible for: the digest of each component that does not depend on the number of ranks, as each rank sees it, and which
components are the same on any number of ranks for a whole run. Not responsible for: judging (`harness.oracle.state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.store import Record

_MODULUS = 2**64
# What no sum of floating-point numbers enters: after a change of the number of ranks it goes on as without one. Weights and
# what follows from them are rounded differently from then on.
_WITHOUT_ROUNDING = ("scheduler", "data", "counters", "rng")
_ROUNDED_ALL_THE_SAME = "counters.loss_history"


def views(records: Mapping[int, Record], world_size: int) -> dict[int, dict[str, str]]:
    """Rank → component → digest of the whole job as that rank sees it.

    Args:
        records: rank → its `state` record of one moment.
        world_size: number of ranks of the attempt.

    Returns:
        Nothing unless every rank has said what it holds: a part of the whole would then be missing.
    """
    common = {rank: _numbers(records[rank].get("common")) for rank in range(world_size) if rank in records}
    if len(common) < world_size or not all(common.values()):
        return {}
    total: dict[str, int] = {}
    for rank in common:
        for name, number in _numbers(records[rank].get("own")).items():
            total[name] = total.get(name, 0) + number
    return {
        rank: {name: f"{(said.get(name, 0) + total.get(name, 0)) % _MODULUS:016x}" for name in sorted(said.keys() | total.keys())}
        for rank, said in common.items()
    }


def without_rounding(record: Record) -> dict[str, str]:
    """The components of a `state` record that are the same on any number of ranks, also after training on it."""
    common = record.get("common")
    names = common if isinstance(common, dict) else {}
    return {n: str(d) for n, d in names.items() if n.partition(".")[0] in _WITHOUT_ROUNDING and n != _ROUNDED_ALL_THE_SAME}


def _numbers(said: Any) -> dict[str, int]:
    """What a rank said, as numbers; empty where it said nothing of use."""
    try:
        return {str(name): int(text, 16) for name, text in said.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
