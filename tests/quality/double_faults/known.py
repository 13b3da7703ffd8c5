"""The bugs of `trainer.py` that no single fault shows: the failure, and the smallest schedule that shows each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.case import Workbench
from harness.chaos.found import Found, Request
from harness.chaos.night import run_night
from harness.scenario import Command, Scenario

FOLDER = Path(__file__).resolve().parent
SEEDS = (1, 2, 3, 4, 5)


Group = tuple[str, str]
Schedule = tuple[str, ...]


@dataclass(frozen=True)
class Bug:
    """A planted bug.

    Attributes:
        name: the word for the trainer.
        shows: kind and component of each failure that it makes → the schedules that show it, of which nothing can be left out,
            and no fault of which can be one that is simpler or earlier.
    """

    name: str
    shows: dict[Group, tuple[Schedule, ...]]

    def is_smallest(self, group: Group, faults: Sequence[str]) -> bool:
        """Whether a schedule is as small, be it with another operation of the same save."""
        same = [_same_save(fault) for fault in faults]
        return any(same == [_same_save(fault) for fault in known] for known in self.shows.get(group, ()))


WRITES_OF_A_SAVE = 2  # trainer.py writes a file in two halves


def _same_save(fault: str) -> str:
    """A fault without what is chance: which operation of a save, or moment of it, is cut; the number of the save is kept."""
    cut, failed = (
        r"(?:before|after) (write|fsync|rename|open|unlink) (?:next\.tmp|lock|\.)",
        r"E[A-Z]+ rank 0 on (write|fsync|rename|open)(?: next\.tmp)?",
    )
    return re.sub(f"(?:{cut}|{failed})(?: occurrence (\\d+))?", _in_save, fault)


def _in_save(found: re.Match[str]) -> str:
    operation, time = found[1] or found[2], int(found[3] or 1)
    save = -(-time // WRITES_OF_A_SAVE) if operation == "write" else time
    return f"in save {save}"


def _at(signal: str, step: int, attempt: int) -> str:
    return f"{signal} all ranks at step {step} by rank 0" + (f" attempt {attempt}" if attempt else "")


def _kill(step: int, attempt: int = 0) -> str:
    return _at("sigkill", step, attempt)


def _term(step: int, attempt: int = 0) -> str:
    return _at("sigterm", step, attempt)


# A save that goes wrong in the second attempt: the next one in its time, or earlier, one that is asked for.
_ASKED_AGAIN = (_kill(4), _term(4, 1))
_SAVED_AGAIN = ((_kill(4), _kill(7, 1)), _ASKED_AGAIN)
_TORN = "sigkill all ranks before write restarts by rank 0 attempt 1"
_CUT = "sigkill all ranks before fsync next.tmp by rank 0"
_CUT_SECOND = "sigkill all ranks before fsync next.tmp occurrence 2 by rank 0"
_EMPTIED = "truncate newest to byte 0"
_FILES = "checkpoint-files"
BUGS = {
    name: Bug(name, shows)
    for name, shows in {
        "rng-stale": {("diverged", "rng.python"): _SAVED_AGAIN},
        "scale-not-saved-again": {("diverged", "scaler"): _SAVED_AGAIN},
        "warm-up-again": {("diverged", "scheduler"): _SAVED_AGAIN},
        # One step before the end no loss feels it any more.
        "emergency-stale": {("diverged", "optimizer"): (_ASKED_AGAIN,), ("state-lost", "optimizer"): ((_kill(4), _term(13, 1)),)},
        "crash-loop-skips": {("data-skipped", "data"): ((_kill(4), _kill(4, 1)),)},
        "restarts-torn": {("resume-crashed", "process"): ((_kill(4), _TORN), (_term(1), _TORN))},
        "recovery-removes": {("last-good-lost", _FILES): ((_CUT_SECOND, _kill(4, 1)),)},
        "quarantine-scanned": {("restarted-from-scratch", _FILES): ((_CUT_SECOND, _kill(4, 1)),)},
        "lock-left": {("resume-crashed", "process"): ((_CUT, f"{_CUT} attempt 1"),)},
        # What is appended to is the only checkpoint, or there is an older one.
        "tmp-appended": {
            ("bad-refusal", _FILES): ((_CUT, _kill(4, 1)),),
            ("lost-work", _FILES): ((_CUT_SECOND, _kill(7, 1)), (_CUT_SECOND, _term(4, 1))),
        },
        "fallback-pinned": {
            ("lost-work", _FILES): ((_kill(7), _EMPTIED, _kill(7, 1)), (_term(4), _EMPTIED, _term(4, 1))),
        },
    }.items()
}


def job(bug: str = "") -> Scenario:
    """The trainer as a job of its own; `-S` starts Python in a third of the time."""
    words = ("{python}", "-S", "trainer.py", "{ckpt}", *([bug] if bug else []))
    workload = Command(command=words, directory=str(FOLDER), steps=14, save_every=3)
    return Scenario(name=f"double-{bug or 'healthy'}", workload=workload, world_sizes=(1,), launch="cold", deadline_s=60.0)


def hunt(
    scenario: Scenario, seed: int, folder: Path, bench: Workbench, budget_s: float, jobs: int, said: Callable[[str], None] = print
) -> Found:
    """A night that ends with the first failure."""
    folder.mkdir(parents=True)
    request = Request(scenario, seed, budget_s, jobs, launch="cold", canary=False, exit_first=True)
    return run_night(request, bench, folder, said, lambda *_: None)
