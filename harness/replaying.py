"""A replay file once more, and what that says: the failure is shown, another one, none, or it cannot be told.

Responsible for: holding a verdict against what the file is kept for, over any number of runs. Not responsible for: running a case
(`harness.case`), or what is tried next (`harness.bisection`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.bisection import Answer, Trial
from harness.case import Workbench, run_case
from harness.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_NOT_REPRODUCED, EXIT_PASS, LaunchError, UsageError
from harness.oracle.verdict import Verdict
from harness.plan import Expected, Plan

Shown = Literal["reproduced", "fails otherwise", "does not reproduce", "inconclusive"]


@dataclass(frozen=True)
class Replayed:
    """One run of a replay file.

    Attributes:
        verdict: of the run.
        path: its run directory.
        shown: what it says of the failure that the file is kept for; of a file that is kept for none, any failure reproduces.
    """

    verdict: Verdict
    path: Path
    shown: Shown


def shown_by(verdict: Verdict, expected: Expected | None) -> Shown:
    """What a verdict says of the failure that was expected."""
    if verdict.outcome == "PASS":
        return "does not reproduce"
    if verdict.outcome == "INCONCLUSIVE":
        return "inconclusive"
    same = expected is None or expected.is_shown_by(verdict.kind, verdict.component)
    return "reproduced" if same else "fails otherwise"


def replay(plan: Plan, bench: Workbench, times: int, done: Callable[[Replayed], None] = lambda _: None) -> list[Replayed]:
    """Runs a case so many times; `done` is told of each.

    Raises:
        UsageError, CapabilityError, LaunchError: the case could not be run at all.
    """
    runs = []
    for _ in range(times):
        verdict, directory = run_case(plan.scenario, bench)
        runs.append(Replayed(verdict, directory.path, shown_by(verdict, plan.expected)))
        done(runs[-1])
    return runs


def exit_of(runs: Sequence[Replayed], expected: Expected | None) -> int:
    """The exit code of a replay: the worst verdict's; where all pass and a failure was expected, one of its own."""
    outcomes = {run.verdict.outcome for run in runs}
    if "FAIL" in outcomes:
        return EXIT_FAIL
    if "INCONCLUSIVE" in outcomes:
        return EXIT_INCONCLUSIVE
    return EXIT_NOT_REPRODUCED if expected else EXIT_PASS


def trial_of(name: str, plan: Plan, bench: Workbench, times: int) -> Trial:
    """One of a history, tried: bad if any run shows the failure, good if all pass, and otherwise it cannot be told.

    A failure of another kind is no answer: neither that the one that is looked for is there, nor that it is not.
    """
    path = None
    answer: Answer = "good"
    why = "PASS"
    for _ in range(times):
        try:
            (run,) = replay(plan, bench, 1)
        except (UsageError, LaunchError) as error:
            return Trial(name, "skip", f"it does not run: {_last_line(str(error))}", path)
        path = run.path
        root = run.verdict.root
        told = f"{run.verdict.outcome} {run.verdict.kind} ({run.verdict.component}): {root.message}" if root else "PASS"
        if run.shown == "reproduced":
            return Trial(name, "bad", told, path)
        if run.shown != "does not reproduce":
            answer, why = "skip", told
    return Trial(name, answer, why, path)


def _last_line(text: str) -> str:
    """Of a longer message its first line, and the last words of the program, which say why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
