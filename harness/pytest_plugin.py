"""The pytest plugin: a fixture that runs a scenario, for this repository's scenarios and for anybody else's.

Responsible for: options, one session (one warm server) for all workers of pytest-xdist, names of run directories, how
verdicts become test results, and which tests belong to a share (`--shard`). Imports no torch, and nothing of the harness that
is not needed to collect tests.

Example::

    from harness import job

    def test_a_rank_dies_in_a_save(check_resume):
        check_resume(job("sharded", ranks=2, faults="sigkill rank 1 during write *.tmp at 50%"))
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.case import Workbench, run_case
from harness.errors import HarnessError, UsageError
from harness.oracle.verdict import Verdict
from harness.report.extra import missing_extra
from harness.report.text import render
from harness.scenario import Reference, Scenario
from harness.session import Session
from harness.shard import Shard

_SESSION = pytest.StashKey[Session]()
_SHARD = pytest.StashKey[Shard | None]()
_BEGAN = pytest.StashKey[tuple[str, float]]()
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
    group.addoption(
        "--shard", metavar="i/n", default=None, help="run share i of n of the tests; the shares need not know each other"
    )
    for name, what in (("json", "as JSON (harness report --merge puts shares together)"), ("html", "as one HTML page")):
        group.addoption(f"--harness-{name}", metavar="FILE", default=None, help=f"also write the results of all cases {what}")


def pytest_configure(config: pytest.Config) -> None:
    """Opens the session, or joins the one that the controller of pytest-xdist has opened."""
    config.stash[_SHARD] = _shard(config)
    config.stash[_BEGAN] = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    config.addinivalue_line("markers", "control: nothing is done to the job; a failure here is a false alarm")
    shared = getattr(config, "workerinput", {}).get("resume_harness")
    config.stash[_SESSION] = Session(Path(shared[0]), shared[1]) if shared else Session.new()


def _shard(config: pytest.Config) -> Shard | None:
    """The share that is asked for, and whether all that is asked for can be done. Raises: pytest.UsageError."""
    problems: list[str] = []
    text, shard = config.getoption("--shard"), None
    try:
        shard = None if text is None else Shard.parse(text)
    except UsageError as error:
        problems += error.problems
    if config.getoption("--harness-html"):
        problems += missing_extra("--harness-html")
    files = [(name, config.getoption(name)) for name in ("--harness-json", "--harness-html")]
    problems += [
        f"{name} {file}: there is no directory {Path(file).absolute().parent}"
        for name, file in files
        if file and not Path(file).absolute().parent.is_dir()
    ]
    if problems:
        raise pytest.UsageError("\n".join(f"resume-harness: {problem}" for problem in problems))
    return shard


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of the other shares. Every worker of pytest-xdist does so, and comes to the same."""
    shard = config.stash[_SHARD]
    if shard is None:
        return
    own = shard.of(item.nodeid for item in items)
    others = [item for item in items if item.nodeid not in own]
    items[:] = [item for item in items if item.nodeid in own]
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which share this is."""
    shard = config.stash[_SHARD]
    return None if shard is None else f"resume-harness: share {shard} of the tests"


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
        request.node.user_properties.append(("resume_harness", _facts(verdict, directory.path, scenario, request.node.nodeid)))
        if verdict.outcome != "PASS":
            pytest.fail(render(verdict, directory.path), pytrace=False)
        return verdict

    yield check
    if request.config.getoption("--harness-keep") == "failed":
        for verdict, path in done:
            if verdict.outcome == "PASS":
                shutil.rmtree(path)


def _facts(verdict: Verdict, path: Path, scenario: Scenario, node_id: str) -> dict[str, Any]:
    """What is told of a case to the process that sums up."""
    from harness.report.checked import case_row

    row = case_row(verdict, path, world_sizes=scenario.world_sizes, part=node_id.partition("::")[0])
    return {**row.model_dump(mode="json"), "title": node_id, "same_world_size": scenario.same_world_size}


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
    _write_results(terminalreporter, cases)
    if not cases:
        return
    same = [case for case in cases if case["same_world_size"] and case["max_loss_diff"] is not None]
    other = [case["max_loss_diff"] for case in cases if not case["same_world_size"] and case["max_loss_diff"] is not None]
    equal = sum(case["max_loss_diff"] == 0 for case in same)
    line = f"resume-harness: {len(cases)} cases; losses bit-equal in {equal} of {len(same)} on one number of ranks"
    if other:
        line += f"; largest difference over a change of ranks {max(other):.1e}"
    terminalreporter.write_line(line)


def _write_results(terminalreporter: Any, cases: list[dict[str, Any]]) -> None:
    """The files of `--harness-json` and `--harness-html`; one that cannot be written is said, and fails no test."""
    config = terminalreporter.config
    files = {name: config.getoption(f"--harness-{name}") for name in ("json", "html")}
    if not any(files.values()):
        return
    from harness.report.checked import session_document
    from harness.report.document import CaseRow, to_text

    began, start = config.stash[_BEGAN]
    shard = str(config.stash[_SHARD] or "")
    rows = [CaseRow.model_validate({**case, "shard": shard}) for case in cases]
    document = session_document(["pytest", *sys.argv[1:]], rows, began, time.monotonic() - start, shard)
    try:
        if files["json"]:
            Path(files["json"]).write_text(to_text(document), encoding="utf-8")
        if files["html"]:
            from harness.report.page import page
            from harness.report.stored import stored_runs

            kept = [folder for case in rows if (folder := Path(case.replay).parent).is_dir()]
            Path(files["html"]).write_text(page(document, stored_runs(kept)), encoding="utf-8")
    except OSError as error:
        terminalreporter.write_line(f"resume-harness: cannot write {error.filename}: {error.strerror}", red=True)
