"""One case, from scenario to verdict; the whole story on one screen.

Responsible for: the order of things. Each thing is done elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from harness import baseline
from harness.errors import HarnessError, UsageError
from harness.judge import judge
from harness.launch.cold import ColdLaunch
from harness.launch.connection import Launcher
from harness.launch.warm import SCRIPT_MODULES, WarmLaunch
from harness.oracle.verdict import Verdict
from harness.plan import Plan, make_plan
from harness.scenario import Command, Scenario
from harness.store import RunDirectory, read_baseline, read_run
from harness.supervisor import run_attempts


@dataclass(frozen=True)
class Workbench:
    """Where cases are run, and by what.

    Attributes:
        runs: directory of all run directories.
        baselines: directory of the baseline cache.
        warm: the session's warm server.
        modules: what the server imports beside torch, for a user's script.
        forked: cases run in processes of one thread, which may fork a keeper instead of starting one.
    """

    runs: Path
    baselines: Path
    warm: WarmLaunch
    modules: tuple[str, ...] = ()
    forked: bool = False

    def launcher(self, scenario: Scenario) -> Launcher:
        """How the ranks of a scenario are started."""
        if scenario.launch != "warm":
            return ColdLaunch(self.warm.temporary, self.forked)
        foreign = isinstance(scenario.workload, Command) and scenario.workload.probe
        return replace(self.warm, modules=(*SCRIPT_MODULES, *self.modules)) if foreign else self.warm


def run_case(scenario: Scenario, bench: Workbench) -> tuple[Verdict, RunDirectory]:
    """Runs and judges one case.

    0. Refuse what this environment cannot run, before anything is started.
    1. Plan: every attempt, rank, limit and fault, as data.
    2. Save the plan, before anything happens; it is the replay file.
    3. The golden run, twice the first time, and its determinism check: the baseline.
    4. The faulted run with its restarts.
    5. Judge what was recorded, and save the verdict.

    Returns:
        The verdict and the run directory.

    Raises:
        UsageError, CapabilityError, LaunchError: the case could not be run at all.
    """
    check_environment(scenario)
    plan = make_plan(scenario)
    directory = _new_directory(bench.runs, plan)
    _, golden = baseline.obtain(scenario, bench.baselines, bench.launcher(baseline.golden_scenario(scenario)))
    shutil.copytree(golden, directory.golden)
    run_attempts(plan, directory, bench.launcher(scenario))
    return judge_stored(directory.path), directory


def check_environment(scenario: Scenario) -> None:
    """Raises: UsageError if the command does not exist, or torch is not installed for the interpreter that trains."""
    problems = []
    if isinstance(scenario.workload, Command):
        commands = [words for words in (scenario.workload.command, scenario.workload.resume_command) if words]
        python = scenario.workload.python or sys.executable
        programs = sorted({python if words[0] == "{python}" else words[0] for words in commands})
        missing = [program for program in programs if shutil.which(program) is None]
        if (given := scenario.workload.python) is not None and shutil.which(given) is None:
            missing = [program for program in missing if program != given]
            problems.append(f"python {given!r} does not exist or cannot be executed; expected an interpreter or its path")
        problems += [f"command {name!r} does not exist or cannot be executed; expected a program or its path" for name in missing]
        folder = scenario.workload.directory
        if folder is not None and not Path(folder).is_dir():
            problems.append(f"the command's directory {folder} does not exist; expected the directory that it is to run in")
    elif importlib.util.find_spec("torch") is None:
        problems.append(f"torch is not installed for {sys.executable}, which trains; expected torch 2.6 or newer")
    if problems:
        raise UsageError(problems)


def judge_stored(path: Path) -> Verdict:
    """Judges a stored run, again if need be, and saves the verdict.

    Raises:
        UsageError: it is no run directory.
        HarnessError: the verdict could not be saved.
    """
    verdict = judge_again(path)
    if problem := save_verdict(verdict, path):
        raise HarnessError(problem)
    return verdict


def judge_again(path: Path) -> Verdict:
    """Judges a stored run, and changes nothing in it. Raises: UsageError if it is no run directory."""
    run = read_run(path)
    return judge(run, read_baseline(run.directory.golden))


def save_verdict(verdict: Verdict, path: Path) -> str:
    """Writes the verdict into its run directory; returns why that could not be done, or ""."""
    file = RunDirectory(path).verdict_file
    try:
        file.write_text(json.dumps(verdict.to_json(), indent=1))
    except OSError as error:
        return f"the verdict could not be saved: cannot write {file}: {error.strerror}; expected a file in a writable directory"
    return ""


def _new_directory(runs: Path, plan: Plan) -> RunDirectory:
    """A run directory of its own: the case's name, numbered where it is taken, be it by another process at this moment."""
    runs.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = plan.scenario.name if number == 1 else f"{plan.scenario.name}.{number}"
        with contextlib.suppress(FileExistsError):
            return RunDirectory.create(runs / name, plan)
    raise AssertionError  # there is always a next number
