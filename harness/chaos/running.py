"""One case of a night: what is run, and what is kept of it.

Responsible for: the answer of a case, small enough to be kept for thousands of them; what a passed case leaves on disk, which is
removed. Not responsible for: which cases there are (`harness.chaos.night`), in which process they run (`harness.workers`).
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.case import Workbench, run_case
from harness.chaos.coverage import Point, covered_by
from harness.errors import HarnessError
from harness.oracle.history import History, finished, live_faults_fired
from harness.oracle.verdict import Verdict
from harness.scenario import Reference, Scenario
from harness.store import Run, read_run

MISSED = "fault-did-not-fire"


@dataclass(frozen=True)
class Ran:
    """What came of a case.

    Attributes:
        outcome: PASS, FAIL or INCONCLUSIVE.
        kind, component: as of the verdict; with its part (`rng.python`).
        message: of the root finding, or why it could not be run.
        entry: the case in a `harness.result/1` document.
        points: what fired, in order.
        path: the run directory; "" where it is gone.
        expect: what was demanded of it.
        took_s: seconds, as the harness sees them.
    """

    outcome: str
    kind: str | None
    component: str
    message: str
    entry: dict[str, Any]
    points: tuple[Point, ...]
    path: str
    expect: str
    took_s: float = 0.0

    @property
    def missed(self) -> bool:
        """Whether nothing else is wrong than that something drawn did not happen."""
        return self.outcome == "INCONCLUSIVE" and self.kind == MISSED

    @property
    def group(self) -> tuple[str, str]:
        """Failures with the same one are taken for the same."""
        return self.kind or "", self.component


def run_one(scenario: Scenario, bench: Workbench, keep: bool = False) -> Ran:
    """Runs a case, and once more where less was demanded of it than it turned out to owe.

    Args:
        scenario: the case.
        bench: where it runs.
        keep: keep its run directory even if it passes.

    What stands when a restart comes is known afterwards only: a schedule with damage demands a resume or a refusal. Where the job
    refused although a checkpoint stood there that nothing had been done to, a resume was owed, and is demanded.
    """
    began = time.monotonic()
    try:
        ran = _ran(*_run(scenario, bench), scenario)
        if ran.outcome == "PASS" and scenario.expect == "resumes-or-refuses" and _refused_too_much(read_run(Path(ran.path))):
            shutil.rmtree(ran.path, ignore_errors=True)
            owed = scenario.model_copy(update={"expect": "resumes"})
            ran = _ran(*_run(owed, bench), owed)
    except (HarnessError, OSError) as error:  # of one case; the others can still be told
        text = f"this case could not be run: {error}"
        entry = Verdict(scenario.name, "; ".join(scenario.faults) or "none", "INCONCLUSIVE").to_json() | {"kind": "harness-error"}
        return Ran("INCONCLUSIVE", "harness-error", "none", text, entry, (), "", scenario.expect, time.monotonic() - began)
    path = ran.path
    if (ran.outcome == "PASS" or ran.missed) and not keep:
        shutil.rmtree(path, ignore_errors=True)
        path = ""
    fields = {**vars(ran), "path": path, "took_s": time.monotonic() - began}
    return Ran(**fields)


def _run(scenario: Scenario, bench: Workbench) -> tuple[Verdict, Run]:
    verdict, directory = run_case(scenario, bench)
    return verdict, read_run(directory.path)


def _ran(verdict: Verdict, run: Run, scenario: Scenario) -> Ran:
    root = verdict.root
    message = root.message if root else ""
    points = tuple(covered_by(run))
    path = str(run.directory.path)
    return Ran(verdict.outcome, verdict.kind, verdict.component, message, verdict.to_json(), points, path, scenario.expect)


def _refused_too_much(run: Run) -> bool:
    """Whether the reference trainer ended a restart although a checkpoint stood there that was committed and left alone."""
    last = run.attempts[-1]
    if not isinstance(run.plan.scenario.workload, Reference) or not last.index or finished(last) or live_faults_fired(last):
        return False
    return History(run).newest_undamaged(last.index) is not None
