"""The corpus: what earlier nights have found, kept in a folder that is given to each night.

Responsible for: its files, read and written so that a killed night leaves nothing half; which of its cases belong to a job.
Not responsible for: running them (`harness.chaos.night`).

Layout::

    cases/ID.toml     a failure as a replay file, as small as it could be made
    corpus.jsonl      what became of each, night after night: failing, fixed, flaky
    coverage.jsonl    what each night has covered (harness.chaos.coverage)
    history.jsonl     one line per night: seed, counts, groups of failures
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.chaos.coverage import Coverage, read
from harness.errors import UsageError
from harness.plan import make_plan, read_plan, write_plan
from harness.scenario import Command, Reference, Scenario

SCHEMA, HISTORY_SCHEMA = "harness.corpus/1", "harness.history/1"
FAILING, FIXED, FLAKY = "failing", "fixed", "flaky"


@dataclass(frozen=True)
class Kept:
    """One case of the corpus.

    Attributes:
        id: its name.
        scenario: the case.
        fixed: whether it passed in the last night that ran it.
        group: kind and component of the failure.
        flaky: whether it failed in that night, and did not when it was repeated.
    """

    id: str
    scenario: Scenario
    fixed: bool
    group: tuple[str, str]
    flaky: bool = False


class Corpus:
    """A corpus folder; made where there is none. Raises: UsageError where it cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            (folder / "cases").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(
                [f"cannot write to the corpus {folder}: {error.strerror}; expected a directory (--corpus)"]
            ) from None

    def cases(self) -> tuple[list[Kept], list[str]]:
        """Its cases, in the order of their names, and one sentence for each file that cannot be read, which is left alone."""
        said, problems = self._said()
        found = []
        for file in sorted((self.folder / "cases").glob("*.toml")):
            try:
                scenario = read_plan(file).scenario
            except UsageError as error:
                problems.append("; ".join(error.problems) + " (left alone: it is of another version, or was edited)")
                continue
            last = said.get(file.stem, {})
            group = str(last.get("kind", "")), str(last.get("component", ""))
            found.append(Kept(file.stem, scenario, last.get("event") == FIXED, group, last.get("event") == FLAKY))
        return found, problems

    def coverage(self) -> tuple[Coverage, list[str]]:
        """What all nights have covered."""
        return read(self.folder / "coverage.jsonl")

    def keep(self, scenario: Scenario) -> str:
        """Adds a failure, and returns its name; one that is there already is not touched."""
        name = identity(scenario)
        file = self.folder / "cases" / f"{name}.toml"
        if not file.exists():
            new = file.with_suffix(f".{os.getpid()}.new")  # another night may find the same at this moment
            write_plan(make_plan(scenario.model_copy(update={"name": name})), new)
            with new.open("rb") as written:
                os.fsync(written.fileno())
            new.rename(file)
        return name

    def say(self, event: str, name: str, group: tuple[str, str], night: str) -> None:
        """Notes what became of a case in a night."""
        line = {"schema": SCHEMA, "event": event, "id": name, "kind": group[0], "component": group[1], "night": night}
        self._append("corpus.jsonl", {**line, "time_s": time.time()})

    def end(self, covered: Coverage, night: Mapping[str, Any]) -> None:
        """Notes what a night has covered, and what came of it."""
        self._append("coverage.jsonl", {**covered.to_json(), "night": night.get("night")})
        self._append("history.jsonl", {"schema": HISTORY_SCHEMA, "time_s": time.time(), **night})

    def _append(self, name: str, entry: Mapping[str, Any]) -> None:
        fd = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            whole = size == 0 or os.pread(fd, 1, size - 1) == b"\n"
            os.write(fd, b"" if whole else b"\n")  # a night was killed within its line
            os.write(fd, (json.dumps(entry) + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def _said(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        last: dict[str, dict[str, Any]] = {}
        problems = []
        file = self.folder / "corpus.jsonl"
        for number, line in enumerate(file.read_bytes().split(b"\n") if file.is_file() else (), 1):
            if not line:
                continue
            try:
                entry = json.loads(line)
                if entry["schema"] != SCHEMA:
                    raise ValueError(f"schema {entry['schema']!r}")
                last[str(entry["id"])] = entry
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                problems.append(f"{file} line {number} is left out: {error}; expected {SCHEMA!r}")
        return last, problems


def identity(scenario: Scenario) -> str:
    """A name for a case: the same for the same schedule of the same job."""
    facts = scenario.model_dump(mode="json", exclude={"name", "deadline_s", "launch"})
    facts["workload"].pop("directory", None)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def for_job(kept: Scenario, job: Scenario) -> Scenario | None:
    """A case of the corpus as it is run for a job; None where it is of another one.

    The job may have been mended since: of a command the words count, and not what stands behind them; of the reference trainer
    everything but the planted defects.
    """
    mine, theirs = job.workload, kept.workload
    if isinstance(mine, Command) and isinstance(theirs, Command):
        same = mine.command == theirs.command and mine.resume_command == theirs.resume_command
        changed: Command | Reference = theirs.model_copy(update={"directory": mine.directory})
    elif isinstance(mine, Reference) and isinstance(theirs, Reference):
        same = (mine.format, mine.parallelism) == (theirs.format, theirs.parallelism)
        changed = theirs.model_copy(update={"defects": mine.defects})
    else:
        return None
    # It may have been found on a faster machine.
    deadline_s = max(kept.deadline_s, job.deadline_s)
    return kept.model_copy(update={"workload": changed, "launch": job.launch, "deadline_s": deadline_s}) if same else None
