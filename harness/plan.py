"""Scenario → plan: everything that will be done, as data, before anything is done. The plan is the replay file.

Responsible for: which attempt gets which ranks, limits and faults, and for reading and writing `plan.toml`.
Pure: the same scenario gives the same plan, on any machine; paths are filled in at launch.
"""

from __future__ import annotations

import difflib
import os
import platform
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import tomlkit

from harness.errors import UsageError
from harness.failures import COMPONENTS, FAIL_KINDS
from harness.fault import (
    DamageFault,
    DiskFault,
    ErrnoFault,
    Fault,
    HoldFault,
    NumericFault,
    PowerCutFault,
    SignalFault,
)
from harness.plan_lines import line_of
from harness.scenario import Command, Reference, Scenario

SCHEMA = "harness.plan/1"
_NOTES = """\
One case of the resume harness. Run it again with: harness replay plan.toml
What happens, in words:
"""


@dataclass(frozen=True)
class Expected:
    """The failure that a replay file is kept for.

    Attributes:
        kind: its word, one of `harness.failures.FAIL_KINDS`.
        component: what was lost or hit; with its part (`rng.torch`) no other part of it is meant.
    """

    kind: str
    component: str

    def __str__(self) -> str:
        """As reports write it: `diverged (rng.torch)`."""
        return f"{self.kind} ({self.component})"

    def is_shown_by(self, kind: str | None, component: str) -> bool:
        """Whether a failure is this one: the same kind, and the same component where one is said in more detail."""
        return kind == self.kind and (component == self.component or component.partition(".")[0] == self.component)


@dataclass(frozen=True)
class AttemptPlan:
    """One launch of all ranks.

    Attributes:
        index: 0 is the first launch, 1 the first restart.
        world_size: number of ranks.
        live: faults done to the running processes.
        disk: at most one too-small disk.
        damage: what is done to the files before this launch.
    """

    index: int
    world_size: int
    live: tuple[SignalFault | PowerCutFault | HoldFault | ErrnoFault, ...]
    disk: DiskFault | None
    damage: tuple[DamageFault, ...]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults of this attempt that must fire."""
        return (*self.damage, *((self.disk,) if self.disk else ()), *self.live)

    @property
    def power_cut(self) -> PowerCutFault | None:
        """The power cut of this attempt, if any."""
        return next((fault for fault in self.live if isinstance(fault, PowerCutFault)), None)

    @property
    def traced(self) -> bool:
        """Whether what is written must be recorded with its data, and operations done in one order for all ranks."""
        return any(isinstance(fault, (PowerCutFault, HoldFault)) or getattr(fault, "patient", False) for fault in self.live)


@dataclass(frozen=True)
class Plan:
    """All attempts of a case; those after the last planned fault are plain restarts.

    `versions` is the software that the plan was made with (`versions()`), which a replay compares with its own. `expected` is the
    failure that it showed; None for a case that has not been run, or did not fail. `flip_after` is for a run that measures noise:
    the last bit of every weight is flipped after so many batches; no replay file has it.
    """

    scenario: Scenario
    attempts: tuple[AttemptPlan, ...]
    numeric: tuple[NumericFault, ...]
    versions: Mapping[str, str]
    expected: Expected | None = None
    flip_after: int | None = None


def make_plan(scenario: Scenario, recorded: Mapping[str, str] | None = None, expected: Expected | None = None) -> Plan:
    """Lays the faults of a scenario out over its attempts.

    Args:
        scenario: what is asked for.
        recorded: the versions that a replay file names; those of this environment if there is none.
        expected: the failure that a replay file is kept for.
    """
    faults = scenario.parsed_faults()
    attempts = []
    for index in range(scenario.max_attempts):
        here = [fault for fault in faults if getattr(fault, "attempt", None) == index]
        attempts.append(
            AttemptPlan(
                index=index,
                world_size=scenario.world_size(index),
                live=tuple(fault for fault in here if isinstance(fault, (SignalFault, PowerCutFault, HoldFault, ErrnoFault))),
                disk=next((fault for fault in here if isinstance(fault, DiskFault)), None),
                damage=tuple(fault for fault in here if isinstance(fault, DamageFault)),
            )
        )
    numeric = tuple(fault for fault in faults if isinstance(fault, NumericFault))
    return Plan(scenario, tuple(attempts), numeric, versions() if recorded is None else recorded, expected)


def versions() -> dict[str, str]:
    """What the replay file says of the software, read without importing any of it."""
    return dict(_installed())


@cache  # reading a distribution's metadata takes 3 ms, and every case asks several times
def _installed() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for key, distribution in (("harness", "resume-harness"), ("torch", "torch")):
        try:
            found[key] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[key] = "not installed"
    return found


def replay_line(file: str | Path) -> str:
    """The line that runs a replay file again, as a shell takes it whatever the file is called."""
    return f"harness replay {shlex.quote(str(file))}"


def write_plan(plan: Plan, path: Path) -> None:
    """Writes the replay file, with comments that say in words what happens."""
    document = tomlkit.document()
    for line in _NOTES.splitlines() + [f"  {sentence}" for sentence in narrate(plan)]:
        document.add(tomlkit.comment(_printable(line)))
    document.add("schema", tomlkit.item(SCHEMA))
    document.add("versions", tomlkit.item(dict(plan.versions)))
    if plan.expected:
        document.add("expected", tomlkit.item({"kind": plan.expected.kind, "component": plan.expected.component}))
    scenario = plan.scenario.model_dump(exclude_none=True)
    workload = scenario.pop("workload")
    document.add("scenario", tomlkit.item(scenario))
    document.add("workload", tomlkit.item(workload))
    path.write_text(tomlkit.dumps(document), encoding="utf-8")


def write_expected(path: Path, expected: Expected) -> None:
    """Adds to a stored replay file what it has been seen to show. The file is the old one or the new one at any moment.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    table = {"kind": expected.kind, "component": expected.component}
    new.write_text(path.read_text(encoding="utf-8").rstrip("\n") + "\n\n" + tomlkit.dumps({"expected": table}), encoding="utf-8")
    os.replace(new, path)  # noqa: PTH105 - of the two names, os.replace says what it does


def _printable(text: str) -> str:
    # A command may hold a line end (`python -c …`), a pattern a control character; in a comment neither is TOML.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def read_plan(path: Path) -> Plan:
    """Reads a replay file.

    Raises:
        UsageError: it is missing, no TOML, of another schema, or anything in it is wrong; all problems at once.
    """
    if path.is_dir():
        path = path / "plan.toml"
    if path.exists() and not path.is_file():  # a pipe would block for ever
        raise UsageError([f"cannot read the replay file {path}: no regular file; expected a plan.toml that a run has written"])
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError([f"cannot read the replay file {path}: {error}; expected a plan.toml that a run has written"]) from None
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: numbers of too many digits and arrays that are nested too deep raise what Python raises.
        raise UsageError([f"{path} is no TOML: {error}; expected a plan.toml that a run has written"]) from None
    try:
        return _plan_of(data, path.parent)
    except UsageError as error:
        raise UsageError([f"{path}: {_placed(problem, text)}" for problem in error.problems]) from None


def _placed(problem: str, text: str) -> str:
    line = line_of(problem, text)
    return f"line {line}: {problem}" if line else problem


def _plan_of(data: Mapping[str, Any], folder: Path) -> Plan:
    problems = _other_schema(data)
    problems += [
        f"unknown table {key!r}" for key in data if key not in ("schema", "versions", "expected", "scenario", "workload")
    ]
    problems += [f"table [{key}] is missing" for key in ("scenario", "workload") if not isinstance(data.get(key), Mapping)]
    if isinstance(data.get("scenario"), Mapping) and "workload" in data["scenario"]:
        problems.append("unknown entry 'workload' in [scenario]; expected it as a table of its own")
    recorded = data.get("versions", {})
    if not isinstance(recorded, Mapping) or not all(isinstance(value, str) for value in recorded.values()):
        problems.append(f"versions: found {recorded!r}; expected a table of strings")
    expected = _expected_of(data.get("expected"), problems)
    if not all(isinstance(data.get(key), Mapping) for key in ("scenario", "workload")):
        raise UsageError(problems)
    try:
        scenario = _scenario_of(data, folder)
    except UsageError as error:
        raise UsageError([*problems, *error.problems]) from None
    if problems:
        raise UsageError(problems)
    return make_plan(scenario, recorded, expected)


def _other_schema(data: Mapping[str, Any]) -> list[str]:
    if data.get("schema") == SCHEMA:
        return []
    recorded = data.get("versions")
    writer = recorded.get("harness") if isinstance(recorded, Mapping) else None
    by = f"; it was written by harness {writer}, this is {versions()['harness']}: use one that reads it" if writer else ""
    return [f"unknown schema {data.get('schema')!r}; expected {SCHEMA!r}{by}"]


def _expected_of(table: Any, problems: list[str]) -> Expected | None:
    """What the file is kept for; what is wrong with it is added to `problems`."""
    if table is None:
        return None
    if not isinstance(table, Mapping):
        problems.append(f"expected: found {table!r}; expected a table with kind and component")
        return None
    before = len(problems)
    problems += [
        f"expected.{key}: unknown entry; expected kind and component" for key in table if key not in ("kind", "component")
    ]
    kind, component = table.get("kind"), table.get("component")
    problems += _no_word("kind", kind, FAIL_KINDS, kind)
    problems += _no_word("component", component, COMPONENTS, str(component).partition(".")[0])
    return Expected(str(kind), str(component)) if len(problems) == before else None


def _no_word(key: str, value: Any, words: Sequence[str], word: Any) -> list[str]:
    if isinstance(value, str) and word in words:
        return []
    near = difflib.get_close_matches(str(word), words, 1) if value is not None else []
    meant = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(words)}"
    return [f"expected.{key}: {'missing' if value is None else f'found {value!r}'}{meant}"]


def _scenario_of(data: Mapping[str, Any], folder: Path) -> Scenario:
    workload = _tuples(data["workload"])
    # Beside the file, so that the two can be given away together; a text with NUL is no path, and is refused as a text.
    if isinstance(workload.get("directory"), str) and "\0" not in workload["directory"]:
        workload["directory"] = str((folder / workload["directory"]).resolve())
    return Scenario.build({**_tuples(data["scenario"]), "workload": workload})


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    # TOML has arrays only, the models have tuples only.
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def narrate(plan: Plan) -> list[str]:
    """The case in sentences, one per attempt, for comments and reports."""
    scenario = plan.scenario
    lines = [f"{_work(scenario.workload)}; {scenario.launch} launch, seed {scenario.seed}"]
    lines += [f"in every attempt, and in the uninterrupted run: {fault}" for fault in plan.numeric]
    last = max((a.index for a in plan.attempts if a.faults), default=-1)
    sizes = scenario.world_sizes
    changes = [n + 1 for n in range(len(sizes)) if n == 0 or sizes[n] != sizes[n - 1]]
    for attempt in plan.attempts[: max(last + 2, changes[-1])]:
        ranks = f"attempt {attempt.index} on {attempt.world_size} rank{'s' * (attempt.world_size != 1)}"
        done = "; ".join(map(str, attempt.faults)) or "no fault"
        lines.append(f"{ranks}: {done}")
    lines.append(f"then it must be seen that the job {scenario.expect.replace('-', ' ')}")
    return lines


def _work(workload: Reference | Command) -> str:
    if isinstance(workload, Command):
        return " ".join(workload.command)
    return f"the reference trainer, {workload.format} checkpoints every {workload.save_every} batches, {workload.steps} batches"
