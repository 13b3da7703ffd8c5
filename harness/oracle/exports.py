"""What a foreign job saves apart from its checkpoints, and which is therefore owed to nobody: the best weights, an export.

Responsible for: telling such saves from checkpoints, by what the uninterrupted run saved when, under which names, how large.
Pure. Not responsible for: judging.

Does not verify: a save whose name never occurs in the uninterrupted run (on request, say) is taken for a checkpoint.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from harness.checkpoint_files import is_best, top_level
from harness.store import Baseline, Record

# Weights without the optimizer's two moments are a third of a checkpoint; without one moment, half.
_SHARE = 0.7


def sort_of(name: str) -> str:
    """The name without its numbers: what one job saves again and again is of one sort."""
    return re.sub(r"[0-9]+", "#", name)


def exported(baseline: Baseline) -> frozenset[str]:
    """The sorts of saves that are no checkpoints, as the uninterrupted run tells.

    Sorts that are always saved at the same steps are one save in several files. No checkpoint is a save that is much smaller
    than another, or is called the best beside one that is no smaller, provided that the other one is saved before
    the last step too (from a merged model nobody goes on), and not whenever this one is.
    """
    sizes: dict[str, int] = {}
    for name, size in _sizes(baseline.files or {}).items():
        sizes[sort_of(name)] = max(size, sizes.get(sort_of(name), 0))
    saves = [_Sort(found, tuple(sorts), sum(sizes[one] for one in sorts)) for found, sorts in _together(baseline, sizes)]
    last = max((batch.step for log in baseline.ranks.values() for batch in log.batches), default=0)
    whole = [one for one in saves if min(one.steps) < last and not one.is_best]
    return frozenset(
        sort
        for one in saves
        for sort in one.sorts
        if any(one.size < other.size * (1 / _SHARE if one.is_best else _SHARE) and one.steps - other.steps for other in whole)
    )


@dataclass(frozen=True)
class _Sort:
    """What is always saved together: when, under which names, and how many bytes."""

    steps: frozenset[int]
    sorts: tuple[str, ...]
    size: int

    @property
    def is_best(self) -> bool:
        return any(map(is_best, self.sorts))


def _together(baseline: Baseline, known: Container[str]) -> Iterable[tuple[frozenset[int], list[str]]]:
    found: dict[frozenset[int], list[str]] = defaultdict(list)
    for sort, steps in _steps(baseline).items():
        if sort in known:
            found[frozenset(steps)].append(sort)
    return found.items()


def names_in(save: Record) -> list[str]:
    """The top-level names of a `save` record: of the checkpoint, and of all that a foreign job has written with it."""
    return [top_level(str(name)) for name in (save["checkpoint"], *(save.get("also") or ()))]


def _sizes(files: Mapping[str, tuple[int, str]]) -> dict[str, int]:
    """Top-level name → bytes."""
    found: dict[str, int] = defaultdict(int)
    for path, (size, _) in files.items():
        found[top_level(path)] += size
    return found


def _steps(baseline: Baseline) -> dict[str, set[int]]:
    """Sort → the steps at which it was saved."""
    found: dict[str, set[int]] = defaultdict(set)
    for log in baseline.ranks.values():
        for record in log.of("save", moment="end"):
            for name in names_in(record):
                found[sort_of(name)].add(int(record.get("step") or 0))
    return found
