"""What a foreign job saves apart from its checkpoints, and which is therefore owed to nobody: the best weights, an export.

Responsible for: telling such saves from checkpoints, by what the uninterrupted run saved when, under which names, how large.
Pure. Not responsible for: judging.

Does not verify: a save whose name never occurs in the uninterrupted run (on request, say) is taken for a checkpoint.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from harness.checkpoint_files import is_best, top_level
from harness.store import AttemptRun, Baseline

# Weights without the optimizer's two moments are a third of a checkpoint; without one moment, half.
_SHARE = 0.7


def sort_of(name: str) -> str:
    """The name without its numbers: what one job saves again and again is of one sort."""
    return re.sub(r"[0-9]+", "#", name)


def exported(baseline: Baseline) -> dict[str, frozenset[str]]:
    """The sorts of saves that are no checkpoints, as the uninterrupted run tells.

    That is what is much smaller than another sort, or is called the best beside one that is no smaller, provided that the other
    sort is saved before the last step too (from a merged model nobody goes on), and not always at the same steps (then
    the two are one checkpoint in two files).

    Returns:
        Sort → the other sorts, which are the checkpoints.
    """
    sizes: dict[str, int] = {}
    for name, size in _sizes(baseline.files or {}).items():
        sizes[sort_of(name)] = max(size, sizes.get(sort_of(name), 0))
    steps, last = _steps(baseline), max((b.step for log in baseline.ranks.values() for b in log.batches), default=0)
    whole = {sort for sort, found in steps.items() if sort in sizes and min(found) < last}
    found = {}
    for sort in steps.keys() & sizes.keys():
        share = 1 / _SHARE if is_best(sort) else _SHARE
        others = {one for one in whole - {sort} if sizes[sort] < share * sizes[one] and not is_best(one)}
        if apart := frozenset(one for one in others if steps[sort] - steps[one]):
            found[sort] = apart
    return found


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
            found[sort_of(top_level(str(record["checkpoint"])))].add(int(record.get("step") or 0))
    return found


def written_with(attempt: AttemptRun, name: str) -> set[str]:
    """The sorts that were written in the last save of this name."""
    found: set[str] = set()
    current: set[str] = set()
    for record in attempt.operations:
        if record["event"] == "mark" and record.get("what") == "save":
            if record.get("moment") == "begin":
                current = set()
            elif top_level(str(record.get("checkpoint"))) == name:
                found = current
        elif record.get("operation") in ("write", "rename"):
            current = current | {sort_of(top_level(str(record.get("to") or record.get("path"))))}
    return found
