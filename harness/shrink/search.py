"""Makes a failing case smaller, one step after the other, while it fails in the same way.

Responsible for: running candidates several at a time, taking the first that still fails, and stopping when none does or the
budget ends. Not responsible for: what is simpler (`harness.shrink.reduce`), the files that come of it (`harness.shrink.write`).
"""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.case import Workbench, run_case
from harness.errors import HarnessError, UsageError
from harness.fault import DiskFault, OperationPoint, SignalFault, Who
from harness.oracle.history import parse_quietly
from harness.plan import read_plan
from harness.scenario import Scenario
from harness.shrink.reduce import candidates
from harness.shrink.write import Files, write_files
from harness.store import Record, Run, RunDirectory, read_baseline, read_run
from harness.workers import Pool

# The rest is for one more run of what was found.
_SEARCH_SHARE = 0.9
Say = Callable[[str], None]
Group = tuple[str, str]


@dataclass(frozen=True)
class Failure:
    """What is made smaller: a case, its kind and component, and a run directory in which it failed."""

    scenario: Scenario
    group: Group
    run: Path


@dataclass(frozen=True)
class Smaller:
    """What a failure was made smaller to.

    Attributes:
        scenario: the smallest case that was found.
        group: kind and component, which are those of the failure.
        num_runs: cases that were run for it.
        took_s: seconds.
        complete: whether nothing simpler is left to be tried; else the budget had ended.
        steps: what was done, in words.
        files: what was written.
    """

    scenario: Scenario
    group: Group
    num_runs: int
    took_s: float
    complete: bool
    steps: tuple[str, ...]
    files: Files


def try_case(scenario: Scenario, bench: Workbench) -> tuple[str, Group, str]:
    """Runs a case: its outcome, its kind and component, and its run directory, which is kept if it fails."""
    try:
        verdict, directory = run_case(scenario, bench)
    except (HarnessError, OSError) as error:
        return "INCONCLUSIVE", ("harness-error", str(error)), ""
    group = verdict.kind or "", verdict.component
    if verdict.outcome != "FAIL":
        shutil.rmtree(directory.path, ignore_errors=True)
        return verdict.outcome, group, ""
    return "FAIL", group, str(directory.path)


def shrink(failure: Failure, bench: Workbench, folder: Path, budget_s: float, jobs: int, say: Say) -> Smaller:
    """Makes a failure smaller, and writes what it has become.

    Args:
        failure: which fails.
        bench: where cases run; its folder is removed in the end.
        folder: where the files go.
        budget_s: seconds; what has been reached by then is the result.
        jobs: cases at a time.
        say: is told of each step.
    """
    began = time.monotonic()
    search = _Search(failure, bench, began + _SEARCH_SHARE * budget_s, jobs, say)
    bench.runs.mkdir(parents=True, exist_ok=True)
    try:
        complete = search.run()
        scenario, again = search.best, search.other(began + budget_s)
        files = write_files(scenario, failure.group, search.num_runs, folder, read_run(search.path), again)
        took_s = time.monotonic() - began
    finally:
        search.pool.end()
        shutil.rmtree(bench.runs, ignore_errors=True)
    return Smaller(scenario, failure.group, search.num_runs, took_s, complete, tuple(search.steps), files)


@dataclass
class _Search:
    failure: Failure
    bench: Workbench
    until: float
    jobs: int
    say: Say
    num_runs: int = 0
    steps: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.best, self.path = self.failure.scenario, self.failure.run
        self.pool = Pool(self.say)
        golden = read_baseline(RunDirectory(self.path).golden)
        self.num_steps = max((batch.step for log in golden.ranks.values() for batch in log.batches), default=1)

    def run(self) -> bool:
        """Steps until nothing simpler fails; False where the time was up before."""
        while True:
            found = self._step()
            if found is None:
                return not self._over()
            words, self.best, self.path = found
            self.steps.append(words)
            self.say(f"  after {self.num_runs} runs: {words}")

    def other(self, until: float) -> Path | None:
        """A second run of what was found, which shows what is the same in each; None where there is no time for it."""
        self.num_runs += 1
        self.pool.start("other", try_case, self._named(self.best), self.bench)
        answers = self.pool.wait(until - time.monotonic())
        outcome, group, path = answers[0][1] if answers else ("", ("", ""), "")
        return Path(path) if outcome == "FAIL" and group == self.failure.group else None

    def _step(self) -> tuple[str, Scenario, Path] | None:
        """The first simpler case that still fails; those behind it that run already are ended."""
        waiting = self._untried()
        running: dict[int, tuple[str, Scenario]] = {}
        answers: dict[int, tuple[str, Group, str]] = {}
        numbers = itertools.count()
        asked = 0
        while not self._over():
            while len(self.pool) < self.jobs and (item := next(waiting, None)) is not None:
                number = next(numbers)
                running[number] = item
                self.num_runs += 1
                self.pool.start(number, try_case, self._named(item[1]), self.bench)
            if not len(self.pool):
                return None
            answers |= dict(self.pool.wait(min(1.0, max(0.0, self.until - time.monotonic()))))
            while asked in answers:
                outcome, group, path = answers[asked]
                if outcome == "FAIL" and group == self.failure.group:
                    self.pool.end()
                    for number, (_, scenario) in running.items():
                        if number not in answers:  # it was not heard, and may be asked again
                            self.tried.discard(_key(scenario))
                    return (*running[asked], Path(path))
                asked += 1
        self.pool.end()
        return None

    def _untried(self) -> Iterator[tuple[str, Scenario]]:
        for words, scenario in candidates(self.best, self.num_steps, full_disks(read_run(self.path))):
            if (key := _key(scenario)) not in self.tried:
                self.tried.add(key)
                yield words, scenario

    def _named(self, scenario: Scenario) -> Scenario:
        return scenario.model_copy(update={"name": f"try-{self.num_runs:04d}"})

    def _over(self) -> bool:
        return time.monotonic() >= self.until


def full_disks(run: Run) -> dict[int, SignalFault]:
    """Of the attempts whose disk was too small, a kill of all ranks before the operation at which the job has met that."""
    found: dict[int, SignalFault] = {}
    for attempt in run.attempts:
        for record in attempt.of("fired"):
            path, rank = str(record.get("path")), int(record.get("rank", -1))
            if not isinstance(parse_quietly(record.get("fault")), DiskFault) or rank < 0:
                continue
            # Names with numbers are not the same in each run.
            point = OperationPoint(str(record["operation"]), re.sub(r"[^-._/]*\d[^-._/]*", "*", path))
            before = [one for one in attempt.operations if one.get("rank") == rank and one.get("n", 0) <= record["n"]]
            same = [one for one in before if point.matches(str(one.get("operation")), _paths(one))]
            point = replace(point, occurrence=max(1, len(same)))
            found.setdefault(attempt.index, SignalFault("sigkill", Who(quantifier="all"), point, rank, attempt.index))
    return found


def _paths(record: Record) -> list[str]:
    return [str(path) for path in (record.get("path"), record.get("to")) if path]


def _key(scenario: Scenario) -> str:
    return scenario.model_copy(update={"name": "case"}).model_dump_json()


def as_entry(smaller: Smaller) -> dict[str, Any]:
    """What is written down of it."""
    files = {name: str(path) if path else None for name, path in vars(smaller.files).items()}
    facts = {"group": list(smaller.group), "num_runs": smaller.num_runs, "took_s": smaller.took_s, "complete": smaller.complete}
    return {**facts, "steps": list(smaller.steps), "files": files}


def recalled(entry: Mapping[str, Any]) -> Smaller | None:
    """Reads what `as_entry` wrote; None where its replay file is gone."""
    said = entry["files"]
    strace = Path(said["strace"]) if said["strace"] else None
    files = Files(Path(said["replay"]), Path(said["test"]), strace, said["why_no_strace"] or "")
    try:
        scenario = read_plan(files.replay).scenario
    except UsageError:
        return None
    facts = {name: entry[name] for name in ("num_runs", "took_s", "complete")}
    kind, component = entry["group"]
    return Smaller(scenario, (kind, component), steps=tuple(entry["steps"]), files=files, **facts)


def reproduced(scenario: Scenario, bench: Workbench) -> tuple[str, Failure | None]:
    """Runs a case as it is.

    Returns:
        What came of it in words, and the failure that can be made smaller; None where it does not fail.
    """
    outcome, group, path = try_case(scenario, bench)
    failure = Failure(scenario, group, Path(path)) if outcome == "FAIL" else None
    return f"{outcome} {group[0]} ({group[1]})" if outcome != "PASS" else "PASS", failure
