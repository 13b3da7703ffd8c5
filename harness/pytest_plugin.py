"""The pytest plugin: a fixture that runs a scenario, for this repository's scenarios and for anybody else's.

Responsible for: options, one session (one warm server) for all workers of pytest-xdist, names of run directories, and how
verdicts become test results. Imports no torch, and nothing of the harness that is not needed to collect tests.

Example::

    from harness import job

    def test_a_rank_dies_in_a_save(check_resume):
        check_resume(job("sharded", ranks=2, faults="sigkill rank 1 during write *.tmp at 50%"))
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.case import Workbench, run_case
from harness.errors import HarnessError
from harness.oracle.verdict import Verdict
from harness.report.text import render
from harness.scenario import Reference, Scenario
from harness.session import Session

_SESSION = pytest.StashKey[Session]()
_NAME_CHARACTERS = 170
CheckResume = Callable[[Scenario], Verdict]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("resume-harness", "training jobs that must resume exactly")
    group.addoption(
        "--harness-runs", metavar="DIR", default=None, help="where run directories go (default: runs/ in the root directory)"
    )
    group.addoption(
        "--harness-keep",
        choices=("failed", "all"),
        default="failed",
        help="which run directories are kept: those of cases that did not pass (default), or all",
    )
    group.addoption(
        "--harness-defect",
        metavar="NAME",
        action="append",
        default=[],
        help="plant a defect in the reference trainer, to see the scenarios fail (harness/reference/defects.py names them)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Opens the session, or joins the one that the controller of pytest-xdist has opened."""
    config.addinivalue_line("markers", "control: nothing is done to the job; a failure here is a false alarm")
    shared = getattr(config, "workerinput", {}).get("resume_harness")
    config.stash[_SESSION] = Session(Path(shared[0]), shared[1]) if shared else Session.new()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker of pytest-xdist which session it belongs to."""
    session = node.config.stash[_SESSION]
    node.workerinput["resume_harness"] = (str(session.directory), session.owner)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Closes the session, in the process that has opened it."""
    session = config.stash.get(_SESSION, None)
    if session is not None and not hasattr(config, "workerinput"):
        session.close()


@pytest.fixture(scope="session")
def harness_workbench(pytestconfig: pytest.Config) -> Workbench:
    """Where the cases of this session run."""
    option = pytestconfig.getoption("--harness-runs")
    runs = Path(option).resolve() if option else pytestconfig.rootpath / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        (runs / ".gitignore").write_text("*\n")
    except OSError as error:
        pytest.exit(
            f"resume-harness: cannot write to the run directory {runs}: {error}. Choose another with --harness-runs DIR", 2
        )
    return Workbench(runs, runs / "baselines", pytestconfig.stash[_SESSION].warm())


@pytest.fixture
def check_resume(request: pytest.FixtureRequest, harness_workbench: Workbench) -> Iterator[CheckResume]:
    """Runs a scenario and fails the test unless its verdict is PASS; returns the verdict."""
    done: list[tuple[Verdict, Path]] = []

    def check(scenario: Scenario) -> Verdict:
        problem = ""
        try:
            named = _prepared(scenario, request)
            verdict, directory = run_case(named, harness_workbench)
        except HarnessError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:  # outside of the handler, or pytest would print the text twice
            pytest.fail(problem, pytrace=False)
        done.append((verdict, directory.path))
        request.node.user_properties.append(
            ("resume_harness", {**verdict.to_json(), "same_world_size": scenario.same_world_size})
        )
        if verdict.outcome != "PASS":
            pytest.fail(render(verdict, directory.path), pytrace=False)
        return verdict

    yield check
    if request.config.getoption("--harness-keep") == "failed":
        for verdict, path in done:
            if verdict.outcome == "PASS":
                shutil.rmtree(path)


def _prepared(scenario: Scenario, request: pytest.FixtureRequest) -> Scenario:
    """The scenario under the test's name, with the defects of `--harness-defect`. Raises: UsageError for unknown ones."""
    data = scenario.model_dump()
    data["name"] = _directory_name(request.node.nodeid)
    if isinstance(scenario.workload, Reference):
        data["workload"]["defects"] += tuple(request.config.getoption("--harness-defect"))
    return Scenario.build(data)


def _directory_name(node_id: str) -> str:
    """A test's name as a file name; nothing that two tests of one file could share."""
    path, _, name = node_id.partition("::")
    plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", f"{Path(path).stem}-{name}").strip("-")
    if len(plain) <= _NAME_CHARACTERS and re.fullmatch(r"[\w.=:\[\]-]*", name, re.ASCII):
        return plain
    # Something is left out that another test may not share: the rest of a long name, a parameter in another script.
    return f"{plain[:_NAME_CHARACTERS]}-{hashlib.sha256(node_id.encode(errors='replace')).hexdigest()[:8]}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line on all cases: how many, and how near the losses were."""
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    cases = [value for report in reports for name, value in report.user_properties if name == "resume_harness"]
    if not cases:
        return
    same = [case for case in cases if case["same_world_size"] and case["max_loss_diff"] is not None]
    other = [case["max_loss_diff"] for case in cases if not case["same_world_size"] and case["max_loss_diff"] is not None]
    equal = sum(case["max_loss_diff"] == 0 for case in same)
    line = f"resume-harness: {len(cases)} cases; losses bit-equal in {equal} of {len(same)} on one number of ranks"
    if other:
        line += f"; largest difference over a change of ranks {max(other):.1e}"
    terminalreporter.write_line(line)
