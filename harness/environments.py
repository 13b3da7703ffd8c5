"""Versions of a package as a history: which there are, and each installed into an environment of its own.

Responsible for: virtual environments that differ from the trainer's own in one package only. Each is made with `python -m venv`
and filled by pip; behind that package stands the trainer's environment, so that nothing is downloaded twice, and nothing else
changes. What pip installs from is pip's own configuration (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf). Environments are kept, and
used again by a later search.
Not covered: packages that were compiled against another version of it: they stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.errors import LaunchError, UsageError
from harness.launch.understood import understand
from harness.scenario import Command, Scenario
from harness.signals import interrupted_with

_INSTALL_S = 3600.0
_QUESTION_S = 300.0
_LOCK_S = 3700.0
_SITES = (
    "import json, site; print(json.dumps(site.getsitepackages() + [site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)))"
)


def default_folder() -> Path:
    """Where environments are kept: below XDG_CACHE_HOME, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resume-harness" / "environments"


@dataclass(frozen=True)
class Environments:
    """The versions of a package, in ascending order, and where their environments are.

    Attributes:
        folder: of all environments.
        python: the trainer's interpreter.
        package: the name of the package.
        versions: those that a search may try.
    """

    folder: Path
    python: str
    package: str
    versions: tuple[str, ...]

    def between(self, good: set[str], bad: str) -> list[str]:
        """The versions after all good ones and before the bad one, the middle first."""
        first = max(self.versions.index(name) for name in good) + 1
        last = self.versions.index(bad)
        middle = (first + last - 1) / 2
        return sorted(self.versions[first:last], key=lambda name: abs(self.versions.index(name) - middle))

    def title(self, name: str) -> str:
        """The requirement, as pip knows it."""
        return f"{self.package}=={name}"

    def interpreter(self, version: str) -> Path:
        """The interpreter of the environment with that version, which is made if need be.

        Raises:
            LaunchError: it cannot be installed; the last lines of pip say why.
        """
        facts = [os.path.abspath(shutil.which(self.python) or self.python), canonicalize_name(self.package), version]  # noqa: PTH100
        key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]
        environment = self.folder / f"{canonicalize_name(self.package)}-{version}-{key}"
        python = environment / "bin" / "python"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{environment}.lock", timeout=_LOCK_S):
                if not (environment / "complete").is_file():
                    shutil.rmtree(environment, ignore_errors=True)
                    self._make(environment, python, version)
        except OSError as error:
            raise UsageError([f"cannot make {environment}: {error}; expected a writable folder (--environments DIR)"]) from None
        return python

    def _make(self, environment: Path, python: Path, version: str) -> None:
        _run([self.python, "-m", "venv", "--without-pip", str(environment)], f"make an environment in {environment}", _QUESTION_S)
        sites = json.loads(_run([self.python, "-c", _SITES], f"ask {self.python} for its packages", _QUESTION_S))
        own = next((environment / "lib").glob("python*/site-packages"))
        # Behind what is installed here; with `addsitedir`, so that what is installed there as a link is found too.
        lines = [f"import site; site.addsitedir({str(site)!r})\n" for site in sites if Path(site).is_dir()]
        (own / "trainers-own-environment.pth").write_text("".join(lines))
        pip_install = [*pip(str(python)), "install", "--no-input", "--disable-pip-version-check", "--quiet", self.title(version)]
        _run(pip_install, f"install {self.title(version)}", _INSTALL_S)
        (environment / "complete").write_text(self.title(version) + "\n")


def pip(python: str) -> list[str]:
    """The command line of pip for another interpreter. Raises: UsageError where there is no pip."""
    if importlib.util.find_spec("pip") is None:
        raise UsageError([f"pip is not installed for {sys.executable}; expected it: {sys.executable} -m ensurepip"])
    return [sys.executable, "-m", "pip", "--python", python]


def _run(command: Sequence[str], purpose: str, limit_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"cannot {purpose}: {error}") from None
    interrupted_with(done.returncode)
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()][-3:]
        raise LaunchError(f"cannot {purpose}: {' '.join(said) or f'exit code {done.returncode}'}")
    return done.stdout


def known_versions(python: str, package: str) -> list[str]:
    """The versions that pip finds for that interpreter, as its configuration says where; pre-releases left out.

    Raises:
        UsageError: the index cannot be reached, or has no such package.
    """
    ask = [*pip(python), "index", "versions", "--no-input", "--disable-pip-version-check", package]
    try:
        said = _run(ask, f"ask pip for the versions of {package}", _QUESTION_S)
    except LaunchError as error:
        way = "expected an index that pip can reach (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf), or --versions A,B,C"
        raise UsageError([f"{error}; {way}"]) from None
    listed = re.search(r"^Available versions: (.*)$", said, re.MULTILINE)
    return [word.strip() for word in listed[1].split(",")] if listed else []


def in_order(versions: Sequence[str], good: str, bad: str) -> tuple[str, ...]:
    """Those from the good to the bad one, both included, in ascending order, each once.

    Raises:
        UsageError: one is no version, or the good one is not the earlier.
    """
    problems: list[str] = []
    parsed: dict[Version, str] = {}
    for text in (good, bad, *versions):
        try:
            parsed.setdefault(Version(text), text)
        except InvalidVersion:
            problems.append(f"{text!r} is no version; expected one such as 2.13.0")
    if problems:
        raise UsageError(problems)
    first, last = Version(good), Version(bad)
    if first >= last:
        raise UsageError([f"{good} is not earlier than {bad}; expected the good version first, and a later bad one"])
    return tuple(parsed[version] for version in sorted(parsed) if first <= version <= last)


def with_interpreter(scenario: Scenario, python: Path) -> Scenario:
    """The case under another interpreter: `python` and `torchrun` in its commands become that one.

    Raises:
        UsageError: it is the reference trainer, which runs in the harness's own environment.
    """
    workload = scenario.workload
    if not isinstance(workload, Command):
        raise UsageError(
            ["the replay file runs the reference trainer, in the harness's own environment; expected a command (`{python} …`)"]
        )
    command = _under(workload.command)
    resume = None if workload.resume_command is None else _under(workload.resume_command)
    changes = {"command": command, "resume_command": resume, "python": str(python)}
    # The preloaded process is of the harness's own interpreter.
    return scenario.model_copy(update={"workload": workload.model_copy(update=changes), "launch": "cold"})


def _under(words: tuple[str, ...]) -> tuple[str, ...]:
    if words[0] == "{python}" or understand(words) is None:
        return words
    torchrun = Path(words[0]).name == "torchrun"
    return ("{python}", *(("-m", "torch.distributed.run") if torchrun else ()), *words[1:])


@contextlib.contextmanager
def first_on_path(python: Path) -> Iterator[None]:
    """What a command starts by name (`python` in a shell script) is meanwhile looked for beside that interpreter first."""
    before = {name: os.environ.get(name) for name in ("PATH", "VIRTUAL_ENV")}
    os.environ["PATH"] = os.pathsep.join([str(python.parent), *filter(None, [before["PATH"]])])
    os.environ["VIRTUAL_ENV"] = str(python.parent.parent)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
