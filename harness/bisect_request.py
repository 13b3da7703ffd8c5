"""`harness replay --bisect`: from the words of the command line to a search, and the search itself.

Responsible for: telling commits from versions, everything that can be wrong with what was asked for, and putting the pieces
together: a history (`harness.commits`, `harness.environments`), a trial of one of it (`harness.replaying`), the halving
(`harness.bisection`).
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.bisection import Bisected, Trial, bisect
from harness.case import Workbench
from harness.commits import GitError, find_root, open_commits, relocated
from harness.environments import Environments, default_folder, first_on_path, in_order, known_versions, with_interpreter
from harness.errors import LaunchError, UsageError
from harness.launch.temporary import temporary_folder
from harness.plan import Plan
from harness.replaying import trial_of
from harness.scenario import Command

_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)==(\S+)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Request:
    """What is searched.

    Attributes:
        ends: the good and the bad one: commits, or versions of `package`.
        package: whose versions; "" for commits.
        versions: those that may be tried; () for all that pip finds.
        repository: where the commits are; None for where the script is.
        environments: the folder of the environments.
    """

    ends: tuple[str, str]
    package: str = ""
    versions: tuple[str, ...] = ()
    repository: Path | None = None
    environments: Path = dataclasses.field(default_factory=default_folder)


def parse(
    ends: tuple[str, str] | None,
    package: str | None,
    versions: str | None,
    repository: Path | None,
    environments: Path | None,
    problems: list[str],
) -> Request | None:
    """The search that is asked for; None where none is, or something is wrong, which is added to `problems`."""
    if ends is None and versions is None:
        for name, value in (("--package", package), ("--repo", repository), ("--environments", environments)):
            if value is not None:
                problems.append(f"{name} is for --bisect; expected --bisect GOOD BAD with it")
        return None
    before = len(problems)
    listed = tuple(word.strip() for word in (versions or "").split(",") if word.strip())
    package, ends = _package(ends, package, problems)
    if versions is not None and not package:
        problems.append("--versions is for a package; expected --package NAME, or --bisect NAME==GOOD NAME==BAD")
    if repository is not None and package:
        problems.append(f"--repo is for commits, and versions of {package} were asked for; expected one of them")
    if environments is not None and not package:
        problems.append("--environments is for versions of a package; expected --package NAME with it")
    if versions is not None and len(listed) < 2:
        problems.append(f"--versions: found {versions!r}; expected at least two versions, with commas between them")
    elif package and listed:
        ends = ends or _outermost(listed, problems)
        listed = _checked(listed, ends, problems)
    elif package and ends:
        _checked((), ends, problems)
    if len(problems) > before or ends is None:
        return None
    return Request(ends, package, listed, repository, environments or default_folder())


def _package(ends: tuple[str, str] | None, package: str | None, problems: list[str]) -> tuple[str, tuple[str, str] | None]:
    """The package whose versions are meant, "" for commits; and the ends without its name."""
    if package is not None and not _NAME.fullmatch(package):
        problems.append(f"--package: found {package!r}; expected the name of a package, such as torch")
    matches = [_REQUIREMENT.fullmatch(end) for end in ends or ()]
    named = {canonicalize_name(match[1]) for match in matches if match}
    if ends is None or not named:
        return package or "", ends
    if len(named) > 1 or None in matches or (package and canonicalize_name(package) not in named):
        problems.append(f"--bisect: found {' '.join(ends)}; expected two versions of one package, or two commits")
        return package or "", ends
    good, bad = (match[2] for match in matches if match)
    return package or next(match[1] for match in matches if match), (good, bad)


def _outermost(versions: tuple[str, ...], problems: list[str]) -> tuple[str, str]:
    return (versions[0], versions[-1]) if not problems else ("", "")


def _checked(versions: tuple[str, ...], ends: tuple[str, str], problems: list[str]) -> tuple[str, ...]:
    if problems:
        return versions
    try:
        return in_order(versions, *ends)
    except UsageError as error:
        problems += [f"--versions, --bisect: {problem}" for problem in error.problems]
        return versions


def search(request: Request, plan: Plan, bench: Workbench, times: int, say: Callable[[str], None]) -> Bisected:
    """Finds the first bad commit or version.

    Args:
        request: what is searched.
        plan: what is tried.
        bench: where run directories go.
        times: how often each is tried at most; one run that fails as expected makes it bad.
        say: takes a line of progress.

    Returns:
        What was found.

    Raises:
        UsageError: the repository, a commit, or the index is not what is needed.
    """
    return _versions(request, plan, bench, times, say) if request.package else _commits(request, plan, bench, times, say)


def _bench_of(bench: Workbench, name: str) -> Workbench:
    """Each of a history has baselines of its own: they are made by other code, which the cache cannot see."""
    runs = bench.runs / name
    return dataclasses.replace(bench, runs=runs, baselines=runs / "baselines")


def _commits(request: Request, plan: Plan, bench: Workbench, times: int, say: Callable[[str], None]) -> Bisected:
    root = find_root(plan.scenario, request.repository)
    with temporary_folder("bisect") as folder:
        history, good, bad = open_commits(root, request.ends, folder)
        between = len(history.between({good}, bad))
        say(f"{between} commits of {root} between {request.ends[0]} and {request.ends[1]}; their work trees are in {folder}")

        def trial(name: str) -> Trial:
            try:
                tree = history.check_out(name)
            except GitError as error:
                return Trial(name, "skip", str(error))
            try:
                moved = dataclasses.replace(plan, scenario=relocated(plan.scenario, root, tree))
                return trial_of(name, moved, _bench_of(bench, name[:12]), times)
            finally:
                history.put_away(tree)

        return bisect(history, good, bad, trial, say)


def _versions(request: Request, plan: Plan, bench: Workbench, times: int, say: Callable[[str], None]) -> Bisected:
    workload = plan.scenario.workload
    python = (workload.python if isinstance(workload, Command) else None) or sys.executable
    with_interpreter(plan.scenario, Path(python))  # said before anything is asked for or installed
    versions = request.versions or in_order(known_versions(python, request.package), *request.ends)
    history = Environments(request.environments, python, request.package, versions)
    say(f"{len(versions)} versions of {request.package}: {', '.join(versions)}; environments are kept in {request.environments}")

    def trial(name: str) -> Trial:
        try:
            interpreter = history.interpreter(name)
        except LaunchError as error:
            return Trial(name, "skip", str(error))
        changed = dataclasses.replace(plan, scenario=with_interpreter(plan.scenario, interpreter))
        with first_on_path(interpreter):
            return trial_of(name, changed, _bench_of(bench, name), times)

    good, bad = (next(name for name in versions if Version(name) == Version(end)) for end in request.ends)
    return bisect(history, good, bad, trial, say)
