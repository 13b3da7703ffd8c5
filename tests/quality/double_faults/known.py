"""The bugs of `trainer.py` that no single fault shows: the failure, and the smallest schedule that shows each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.case import Workbench
from harness.chaos.found import Found, Request
from harness.chaos.night import run_night
from harness.scenario import Command, Scenario

FOLDER = Path(__file__).resolve().parent
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Bug:
    """A planted bug.

    Attributes:
        name: the word for the trainer.
        kind, component: what must be found.
        smallest: of each fault of the smallest schedule, what its sentence must match.
    """

    name: str
    kind: str
    component: str
    smallest: tuple[str, ...]


def _kills(first: str, second: str) -> tuple[str, str]:
    """Two kills, in the first launch and in the first restart."""
    return f"sigkill all ranks {first} by rank 0", f"sigkill all ranks {second} by rank 0 attempt 1"


BUGS = {
    bug.name: bug
    for bug in (
        Bug("rng-stale", "diverged", "rng.python", _kills("at step 4", "at step 7")),
        Bug("scale-not-saved-again", "diverged", "scaler", _kills("at step 4", "at step 7")),
        Bug("warm-up-again", "diverged", "scheduler", _kills("at step 4", "at step 7")),
    )
}


def job(bug: str = "") -> Scenario:
    """The trainer as a job of its own; `-S` starts Python in a third of the time."""
    words = ("{python}", "-S", "trainer.py", "{ckpt}", *([bug] if bug else []))
    workload = Command(command=words, directory=str(FOLDER), steps=12, save_every=3)
    return Scenario(name=f"double-{bug or 'healthy'}", workload=workload, world_sizes=(1,), launch="cold", deadline_s=60.0)


def hunt(
    scenario: Scenario, seed: int, folder: Path, bench: Workbench, budget_s: float, jobs: int, said: Callable[[str], None] = print
) -> Found:
    """A night that ends with the first failure."""
    folder.mkdir(parents=True)
    request = Request(scenario, seed, budget_s, jobs, launch="cold", canary=False, exit_first=True)
    return run_night(request, bench, folder, said, lambda *_: None)
