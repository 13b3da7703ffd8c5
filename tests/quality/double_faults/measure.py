"""Hunts the planted bugs from each of the five seeds, and prints what came of it; `scripts/double-faults` runs it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from known import BUGS, SEEDS, hunt, job

from harness.case import Workbench
from harness.session import Session

BUDGET_S, JOBS = 300.0, 4


def measure(names: list[str], folder: Path) -> bool:
    """Whether each was found from each seed within the budget, and came down to the smallest."""
    session, right = Session.new(), True
    try:
        bench = Workbench(folder, folder / "baselines", session.warm())
        for name in names:
            for seed in SEEDS:
                right &= one(name, seed, folder, bench)
    finally:
        session.close()
    return right


def one(name: str, seed: int, folder: Path, bench: Workbench) -> bool:
    """One hunt, with one line on it."""
    bug, began = BUGS[name], time.monotonic()
    found = hunt(job(name), seed, folder / f"{name}-{seed}", bench, BUDGET_S, JOBS, said=lambda _: None)
    group, smaller = next(((one, found.smaller[one]) for one in bug.shows if one in found.smaller), (("", ""), None))
    faults = smaller.scenario.faults if smaller else ()
    right = bug.is_smallest(group, faults)
    runs = smaller.num_runs if smaller else 0
    took_s = time.monotonic() - began
    print(
        f"{name}, seed {seed}: {len(found.ran)} schedules, {runs} runs to shrink, {took_s:.0f} s: {'right' if right else 'WRONG'}"
    )
    print(f"  {'; '.join(faults) or f'not found: {list(found.groups())}'}", flush=True)
    return right


def main() -> None:
    """The command."""
    names = sys.argv[1:] or list(BUGS)
    unknown = [name for name in names if name not in BUGS]
    if unknown:
        sys.exit(f"unknown bugs {', '.join(unknown)}; expected some of {', '.join(BUGS)}")
    folder = Path(tempfile.mkdtemp(prefix="double-faults-"))
    try:
        sys.exit(0 if measure(names, folder) else 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
