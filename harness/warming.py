"""How a user's command is started: from a preloaded process where that gives the same numbers, else as it stands.

Responsible for: trying it once, beside a run as it stands, before it is trusted, and for saying which way was taken and why.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness import baseline
from harness.case import Workbench, check_environment
from harness.launch.command import fill
from harness.launch.connection import Launcher
from harness.launch.understood import why_cold
from harness.launch.warm import Preloading
from harness.scenario import Command, Scenario
from harness.store import Baseline


@dataclass(frozen=True)
class Started:
    """How a command is started from now on.

    Attributes:
        scenario, bench: what to go on with.
        text: which way was taken, in one line.
        baseline: the uninterrupted run.
        golden: the directory that it is stored in.
    """

    scenario: Scenario
    bench: Workbench
    text: str
    baseline: Baseline
    golden: Path


def choose_launch(scenario: Scenario, bench: Workbench, launch: str = "auto") -> Started:
    """Runs the job twice undisturbed (unless that is known already): once as it stands, once from the preloaded process.

    Args:
        scenario: the job, a command that is watched from inside.
        bench: where it runs.
        launch: `auto`; `cold`, as it stands; `warm`, from the preloaded process without a comparison.

    Raises:
        UsageError, LaunchError, CapabilityError: it could not be run.
    """
    workload = scenario.workload
    assert isinstance(workload, Command)
    check_environment(scenario)
    cold = scenario.model_copy(update={"launch": "cold"})
    values = {"python": workload.python or sys.executable, "world_size": str(scenario.world_size(0))}
    why = "it was asked for" if launch == "cold" else why_cold([fill(word, values) for word in workload.command])
    why = "its losses are read from a log" if workload.loss_log else why
    why = "restarts run in another interpreter" if workload.resume_python else why
    early = None if why else bench.preload()  # beside the run as it stands: the two take the same seconds
    try:
        again = None if early is None else partial(_preloaded, scenario, bench, early)
        found, folder = baseline.obtain(cold, bench.baselines, bench.launcher(cold), again)
        why = why or ("" if launch == "warm" else found.other_launch)
        if early is None or why:
            return Started(cold, bench, f"every run is started as it stands: {why}", found, folder)
        _preloaded(scenario, bench, early, folder)  # the uninterrupted run may have been known already
    finally:
        if early is not None:
            early.abandon()
    said = "every run is started from a preloaded process"
    said += "" if launch == "warm" else ", which gave the same losses and states as one as it stands"
    warm = scenario.model_copy(update={"launch": "warm"})
    return Started(warm, replace(bench, modules=_imported(folder)), said, found, folder)


def _preloaded(scenario: Scenario, bench: Workbench, early: Preloading, folder: Path) -> tuple[Scenario, Launcher]:
    warm = baseline.golden_scenario(scenario).model_copy(update={"launch": "warm"})
    bench = replace(bench, modules=_imported(folder))
    if early.waits:
        early.finish(bench.warm_launch)
    return warm, bench.launcher(warm)


def _imported(folder: Path) -> tuple[str, ...]:
    """What the job imports, by the probe's list of it; without one, torch alone is preloaded."""
    file = folder / "imported.json"
    # Optional: what one process has imported another may be unable to.
    return tuple(f"?{name}" for name in json.loads(file.read_text())) if file.is_file() else ()
