"""The commits of a trainer's repository as a history: what lies between two of them, and each in a work tree of its own.

Responsible for: reading a repository without writing to it. The work trees belong to a repository of our own in a temporary
folder, which borrows the objects of the user's: neither their check-out nor their `.git` is touched, and nothing is to be pruned
after a kill. Not carried over: what git does not track (data, builds), submodules, and filters that only that repository knows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.launch.understood import understand
from harness.scenario import Command, Scenario
from harness.signals import interrupted_with

_GIT_S = 300.0
# A harness that is started by a hook of git would otherwise look at that repository.
_NOT_INHERITED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


class GitError(UsageError):
    """Git refused something; its own words are the problem."""


def git(folder: Path, *words: str) -> str:
    """What git says, without the last line end. Raises: GitError."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    # Hooks are the user's programs, and none of them has to run here.
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_GIT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError([f"git could not be run: {error}; expected git 2.17 or newer on the PATH"]) from None
    interrupted_with(done.returncode)
    if done.returncode:
        raise GitError([f"git {words[0]}: {done.stderr.strip() or 'exit code ' + str(done.returncode)}"])
    return done.stdout.rstrip("\n")


@dataclass(frozen=True)
class Commits:
    """The history between two commits.

    Attributes:
        root: the top of the user's check-out.
        store: our repository, in a temporary folder, which has the same objects.
    """

    root: Path
    store: Path

    def between(self, good: set[str], bad: str) -> list[str]:
        """The commits that are ancestors of the bad one and of no good one; git says in which order they halve it."""
        listed = git(self.store, "rev-list", "--bisect-all", bad, "--not", *sorted(good)).splitlines()
        return [name for name in (line.split()[0] for line in listed if line) if name != bad]

    def title(self, name: str) -> str:
        """Its short name, day and subject."""
        return git(self.store, "show", "--no-patch", "--date=short", "--format=%h %cd %s", name)

    def check_out(self, name: str) -> Path:
        """A new work tree of that commit. Raises: GitError."""
        tree = self.store.parent / name[:12]
        git(self.store, "worktree", "add", "--detach", str(tree), name)
        return tree

    def put_away(self, tree: Path) -> None:
        """The inverse of `check_out`."""
        shutil.rmtree(tree, ignore_errors=True)
        git(self.store, "worktree", "prune")


def find_root(scenario: Scenario, repository: Path | None) -> Path:
    """The top of the repository that the trainer's script lies in, or of the one that is named.

    Raises:
        UsageError: there is none, it has changes that no commit has, or nothing of the command lies in it.
    """
    workload = scenario.workload
    if not isinstance(workload, Command):
        raise UsageError(["the replay file runs the reference trainer, which has no repository; expected a command"])
    place = repository or _place_of(workload)
    if place is None:
        raise UsageError(["the command has no directory and no script with a path; expected --repo DIR"])
    if not place.is_dir():
        raise UsageError([f"{place} is no directory; expected the repository of the trainer (--repo DIR)"])
    try:
        root = Path(git(place, "rev-parse", "--show-toplevel"))
    except GitError as error:
        raise UsageError([f"{place} is in no git repository with a check-out ({error}); expected one (--repo DIR)"]) from None
    changed = [line[3:] for line in git(root, "status", "--porcelain", "--untracked-files=no").splitlines()]
    if changed:
        shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise UsageError(
            [f"{root} has changes that are in no commit ({shown}), and commits are what is tried; commit or stash them first"]
        )
    if relocated(scenario, root, root / "elsewhere") == scenario:
        raise UsageError([f"nothing of the command lies in {root}; expected the repository of the trainer (--repo DIR)"])
    return root


def _place_of(workload: Command) -> Path | None:
    program = understand(["python" if word == "{python}" else word for word in workload.command])
    script = Path(workload.directory or "/") / program.words[0] if program and program.words[0] != "-m" else None
    if (
        script is not None
        and script.is_file()
        and (workload.directory or Path(program.words[0] if program else "").is_absolute())
    ):
        return script.resolve().parent
    return Path(workload.directory) if workload.directory else None


def open_commits(root: Path, ends: Sequence[str], folder: Path) -> tuple[Commits, str, str]:
    """The history between two commits of the repository at `root`; our own repository is made in `folder`.

    Returns:
        The history, and the full names of the good and the bad end.

    Raises:
        UsageError: one is unknown, or the good one does not come before the bad one.
    """
    problems: list[str] = []
    names = [_commit(root, end, problems) for end in ends]
    if problems:
        raise UsageError(problems)
    store = folder / "store.git"
    git(folder, "init", "--quiet", "--bare", f"--object-format={git(root, 'rev-parse', '--show-object-format')}", str(store))
    (store / "objects" / "info" / "alternates").write_text(_git_path(root, "objects") + "\n")
    shallow = Path(_git_path(root, "shallow"))
    if shallow.is_file():
        shutil.copy(shallow, store / "shallow")
    history = Commits(root, store)
    good, bad = names
    if good == bad:
        raise UsageError(
            [f"{ends[0]} and {ends[1]} are the same commit ({good[:12]}); expected an earlier good and a later bad one"]
        )
    base = _merge_base(store, good, bad)
    if base != good:
        raise UsageError([_not_before(ends, good, bad, base)])
    return history, good, bad


def _not_before(ends: Sequence[str], good: str, bad: str, base: str) -> str:
    first, last = f"{ends[0]} ({good[:12]})", f"{ends[1]} ({bad[:12]})"
    if base == bad:
        return f"{first} comes after {last}; expected the good one first, and the bad one after it: --bisect GOOD BAD"
    if not base:
        return f"{first} and {last} share no history; expected two commits of one history"
    return f"{first} is no ancestor of {last}; expected an earlier commit of its history, such as {base[:12]}, where the two part"


def _merge_base(store: Path, good: str, bad: str) -> str:
    try:
        return git(store, "merge-base", good, bad)
    except GitError:  # exit code 1 and no word: there is none
        return ""


def _git_path(root: Path, name: str) -> str:
    return str((root / git(root, "rev-parse", "--git-path", name)).resolve())


def _commit(root: Path, name: str, problems: list[str]) -> str:
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except GitError:
        problems.append(f"{name!r} is no commit of {root}; expected a name that `git rev-parse` knows, such as a tag or a hash")
        return ""


def relocated(scenario: Scenario, root: Path, tree: Path) -> Scenario:
    """The case in another work tree: every path of the command that git tracks moves, what it does not track stays.

    Args:
        scenario: the case of a command.
        root: the top of the check-out that its paths lie in.
        tree: the top of the one that they are to lie in.
    """
    workload = scenario.workload
    assert isinstance(workload, Command)
    tracked = set(git(root, "ls-files", "-z", "--full-name").split("\0"))
    folders = {str(parent) for path in tracked for parent in Path(path).parents}

    def moved(text: str) -> str:
        path = Path(text)
        if not path.is_absolute():
            return text
        try:
            inside = os.path.relpath(path.parent.resolve() / path.name, root) if path.name else "."
        except OSError:
            return text
        known = inside in tracked or inside in folders or inside == "."
        return str(tree / inside) if known and not inside.startswith("..") else text

    def words(given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if given is None else tuple(moved(word) for word in given)

    changes = {
        "command": words(workload.command),
        "resume_command": words(workload.resume_command),
        "directory": None if workload.directory is None else moved(workload.directory),
    }
    return scenario.model_copy(update={"workload": workload.model_copy(update=changes)})
