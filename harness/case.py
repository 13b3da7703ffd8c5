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
from harness.launch.understood import understand
from harness.launch.warm import SCRIPT_MODULES, Preloading, WarmLaunch
from harness.oracle import noise
from harness.oracle.verdict import Verdict
from harness.plan import Expected, Plan, make_plan, write_expected
from harness.scenario import Command, Launch, Scenario
from harness.store import Baseline, Run, RunDirectory, flipped_folder, read_baseline, read_run
from harness.supervisor import run_attempts


@dataclass(frozen=True)
class Workbench:
    """Where cases are run, and by what.

    Attributes:
        runs: directory of all run directories.
        baselines: directory of the baseline cache.
        warm: the session's warm server.
        modules: what the server imports beside torch, for a user's script.
        golden_launch: how uninterrupted runs of a user's script are started; as it stands, unless it is known to give the same.
        forked: cases run in processes of one thread, which may fork a keeper instead of starting one.
    """

    runs: Path
    baselines: Path
    warm: WarmLaunch
    modules: tuple[str, ...] = ()
    golden_launch: Launch = "cold"
    forked: bool = False

    def preload(self) -> Preloading:
        """Starts the server for a user's script, before it is known what the script imports."""
        return replace(self.warm, modules=SCRIPT_MODULES).begin()

    def launcher(self, scenario: Scenario) -> Launcher:
        """How the ranks of a scenario are started."""
        if scenario.launch != "warm":
            return ColdLaunch(self.warm.temporary, self.forked)
        return self.warm_launch if isinstance(scenario.workload, Command) and scenario.workload.probe else self.warm

    @property
    def warm_launch(self) -> WarmLaunch:
        """The warm launch of a user's script."""
        return replace(self.warm, modules=(*SCRIPT_MODULES, *self.modules))


def run_case(scenario: Scenario, bench: Workbench) -> tuple[Verdict, RunDirectory]:
    """Runs and judges one case.

    0. Refuse what this environment cannot run, before anything is started.
    1. Plan: every attempt, rank, limit and fault, as data.
    2. Save the plan, before anything happens; it is the replay file.
    3. The golden run, twice the first time, and its determinism check: the baseline.
    4. The faulted run with its restarts; with the tolerance `auto`, how large differences are by nature from there on.
    5. Judge what was recorded, and save the verdict; of a failure also into the plan, as what a replay is to show.

    Returns:
        The verdict and the run directory.

    Raises:
        UsageError, CapabilityError, LaunchError: the case could not be run at all.
    """
    check_environment(scenario)
    plan = make_plan(scenario)
    directory = _new_directory(bench.runs, plan)
    launcher = bench.launcher(baseline.golden_scenario(scenario, bench.golden_launch))
    _, golden = baseline.obtain(scenario, bench.baselines, launcher, launch=bench.golden_launch)
    shutil.copytree(golden, directory.golden)
    run_attempts(plan, directory, bench.launcher(scenario))
    if scenario.tolerance == "auto":
        _measure_noise(directory, bench)
    return judge_stored(directory.path), directory


def _measure_noise(directory: RunDirectory, bench: Workbench) -> None:
    """Runs the uninterrupted job with flipped bits where the restarts went on, unless that is known, and stores its logs."""
    run = read_run(directory.path)
    if run.problems or not read_baseline(directory.golden).ranks:
        return  # the judge says what is wrong with them
    golden = baseline.golden_scenario(run.plan.scenario)
    for after in noise.places(run):
        logs = baseline.flipped(run.plan.scenario, bench.baselines, bench.launcher(golden), after)
        shutil.copytree(logs, flipped_folder(directory.golden, after), dirs_exist_ok=True)


def check_environment(scenario: Scenario) -> None:
    """Raises: UsageError if the command or its script does not exist, or torch is not installed for who trains."""
    problems = []
    if isinstance(scenario.workload, Command):
        own = scenario.workload
        commands = [words for words in (own.command, own.resume_command, own.control_command) if words]
        python = scenario.workload.python or sys.executable
        programs = sorted({python if words[0] == "{python}" else words[0] for words in commands})
        missing = [program for program in programs if shutil.which(program) is None]
        for given in (own.python, own.resume_python):
            if given is not None and shutil.which(given) is None:
                missing = [program for program in missing if program != given]
                problems.append(f"python {given!r} does not exist or cannot be executed; expected an interpreter or its path")
        problems += [
            f"command {name!r} does not exist or cannot be executed; expected a program or its path{_quoted(name)}"
            for name in missing
        ]
        folder = scenario.workload.directory
        if folder is not None and not Path(folder).is_dir():
            problems.append(f"the command's directory {folder} does not exist; expected the directory that it is to run in")
        else:
            problems += [gone for words in commands for gone in _moved(words, python, folder)]
    elif importlib.util.find_spec("torch") is None:
        problems.append(f"torch is not installed for {sys.executable}, which trains; expected torch 2.6 or newer")
    if problems:
        raise UsageError(problems)


def _quoted(program: str) -> str:
    """A hint for a whole command line that was given as one word."""
    words = program.split()
    return ", and its words without quotes around them all" if len(words) > 1 and shutil.which(words[0]) else ""


def _moved(words: tuple[str, ...], python: str, folder: str | None) -> list[str]:
    """Of a script that the command starts and that is not there: where it was looked for."""
    program = understand([python if word == "{python}" else word for word in words])
    script = program.words[0] if program else "-m"
    if script == "-m" or "{" in script or (folder is None and not Path(script).is_absolute()):
        return []
    path = Path(folder or "/") / script
    if path.exists():
        return []
    return [f"the script {path} does not exist; expected it where the command looks for it (in {path.parent})"]


def judge_stored(path: Path) -> Verdict:
    """Judges a stored run, again if need be, and saves the verdict.

    Raises:
        UsageError: it is no run directory.
        HarnessError: the verdict could not be saved.
    """
    run = read_run(path)
    verdict = judge(run, _golden_of(run))
    problem = save_verdict(verdict, path)
    if not problem and verdict.outcome == "FAIL" and run.plan.expected is None:
        problem = _save_expected(verdict, run.directory.plan_file)
    if problem:
        raise HarnessError(problem)
    return verdict


def _save_expected(verdict: Verdict, file: Path) -> str:
    try:
        write_expected(file, Expected(verdict.kind or "", verdict.component))
    except OSError as error:
        return f"what the case shows could not be saved: cannot write {file}: {error.strerror}; expected a writable directory"
    return ""


def judge_again(path: Path) -> Verdict:
    """Judges a stored run, and changes nothing in it. Raises: UsageError if it is no run directory."""
    run = read_run(path)
    return judge(run, _golden_of(run))


def _golden_of(run: Run) -> Baseline:
    """The uninterrupted run of a stored one; where it is damaged or not there yet, one of which nothing but that is known."""
    try:
        return read_baseline(run.directory.golden)
    except UsageError as error:
        return Baseline(run.plan.scenario.world_size(0), {}, problems=tuple(error.problems))


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
