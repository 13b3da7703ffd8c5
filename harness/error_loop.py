"""A file operation of a job is made to fail, the first one, then the second, … until none is left to fail; each run is judged.

Responsible for: the loop, which needs no guess at how many operations there are: a run in which the fault does not fire is the
end. Grouping the failures by the operation and the file that failed. Not responsible for: what must hold (`harness.judge`).
Source: the out-of-memory and I/O-error loops of SQLite, https://www.sqlite.org/testing.html.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.case import Workbench, run_case
from harness.causes import general
from harness.oracle.verdict import Verdict
from harness.plan import replay_line
from harness.scenario import Scenario
from harness.store import read_records
from harness.workers import run_all

MAX_OPERATIONS = 500
_WAVE = 3  # runs per worker before it is looked whether the end is reached; what goes past the end is run for nothing

Progress = Callable[[int, int], None]  # done, failing so far


@dataclass(frozen=True)
class Injected:
    """The run in which the `occurrence`-th operation failed.

    Attributes:
        occurrence: which one, from 1.
        call: the system call, `path` what it was about; "" where the fault did not fire.
        verdict: on the run.
        directory: its run directory.
    """

    occurrence: int
    call: str
    path: str
    verdict: Verdict
    directory: Path


@dataclass(frozen=True)
class ErrorCause:
    """Operations whose failure leads to one failure of the job.

    Attributes:
        kind: the failure kind.
        component: what was lost or damaged.
        text: which error of which operation on which files, numbers left open.
        num_cases: how many of the runs.
        first: the first of them, whose run directory is kept.
    """

    kind: str
    component: str
    text: str
    num_cases: int
    first: Injected


@dataclass(frozen=True)
class ErrorLoop:
    """What came of it.

    Attributes:
        scenario: the job.
        what: the error, the rank and the operation, in words.
        num_operations: how many such operations the job has; each of them failed in a run of its own.
        judged: those runs.
        causes: of the failures, those with the most runs first.
        inconclusive: why nothing can be said, "" where it can.
        took_s: seconds for all of it.
    """

    scenario: Scenario
    what: str
    num_operations: int
    judged: tuple[Injected, ...]
    causes: tuple[ErrorCause, ...]
    inconclusive: str = ""
    took_s: float = 0.0

    @property
    def outcome(self) -> str:
        """PASS, FAIL or INCONCLUSIVE; a job without such an operation shows nothing."""
        if self.causes:
            return "FAIL"
        undecided = self.inconclusive or any(one.verdict.outcome == "INCONCLUSIVE" for one in self.judged)
        return "INCONCLUSIVE" if undecided or not self.judged else "PASS"

    def describe(self) -> str:
        """The outcome in a few lines."""
        lines = [f"{self.outcome}: {self.what}: {self.num_operations} operations, each failed once, in {self.took_s:.1f} s"]
        lines += [f"  {self.inconclusive}"] if self.inconclusive else []
        for cause in self.causes:
            first = cause.first
            lines.append(f"{cause.kind} of {cause.component}: {cause.text} ({cause.num_cases} of {len(self.judged)} runs)")
            lines.append(f"  {first.verdict.root.message if first.verdict.root else ''}")
            lines.append(f"  repeat: {replay_line(first.verdict.replay)}")
        undecided = [one for one in self.judged if one.verdict.outcome == "INCONCLUSIVE"]
        lines += [f"undecided: occurrence {one.occurrence}: {one.verdict.findings[0].message}" for one in undecided]
        return "\n".join(lines)


def error_loop(
    scenario: Scenario,
    bench: Workbench,
    folder: Path,
    errno_name: str,
    operation: str,
    rank: int = 0,
    *,
    attempt: int = 0,
    jobs: int = 1,
    limit: int = MAX_OPERATIONS,
    budget_s: float | None = None,
    progress: Progress = lambda *_: None,
) -> ErrorLoop:
    """Runs a job once per operation of a family, that operation failing.

    Args:
        scenario: the job; its own faults, if any, happen in every run (a kill in attempt 0, say, before errors in attempt 1).
        bench: where cases run.
        folder: where run directories go; that of the first case of each cause is kept, and what could not be judged.
        errno_name: the error, `ENOSPC` and the like.
        operation: a family of `harness.fault.OPERATIONS`.
        rank: whose operations fail.
        attempt: the launch in which they do.
        jobs: runs at a time.
        limit: give up, with no verdict, if so many operations were not the end of it.
        budget_s: start no more runs after so many seconds; without a failure there is then no verdict.
        progress: is told how many runs are done and how many fail.
    """
    began = time.monotonic()
    task = _Task(scenario, Workbench(folder, bench.baselines, bench.warm), f"{errno_name} rank {rank} on {operation} **", attempt)
    judged: list[Injected] = []
    last: Injected | None = None
    # Within a budget no worker has a second run waiting that would begin after its end.
    at_once = jobs if jobs == 1 or budget_s is not None else _WAVE * jobs
    over = False
    while last is None and len(judged) < limit and not over:
        wave = range(len(judged) + 1, min(limit, len(judged) + at_once) + 1)
        results = [result for _, result in run_all(task, wave, jobs)]
        fired = [one.path != "" for one in results]
        end = fired.index(False) if False in fired else len(results)
        judged += results[:end]
        last = results[end] if end < len(results) else None
        for beyond in results[end + 1 :]:
            shutil.rmtree(beyond.directory, ignore_errors=True)
        over = budget_s is not None and time.monotonic() - began >= budget_s
        progress(len(judged), sum(one.verdict.outcome == "FAIL" for one in judged))
    causes = find_error_causes(judged, f"{errno_name} on {operation}")
    _tidy(judged, last, causes)
    what = f"{errno_name} on {operation} by rank {rank}" + (f" in attempt {attempt}" if attempt else "")
    why = _why_not(last, limit, what) if last is not None or not over else _out_of_time(len(judged), budget_s)
    return ErrorLoop(scenario, what, len(judged), tuple(judged), tuple(causes), why, time.monotonic() - began)


def find_error_causes(judged: Sequence[Injected], error: str) -> list[ErrorCause]:
    """The failures, grouped by what failed and what came of it."""
    found: dict[tuple[str, str, str], list[Injected]] = {}
    for one in judged:
        if one.verdict.outcome == "FAIL":
            text = f"{error} ({one.call}) {re.sub(r'[0-9]+', '*', general(one.path))}"
            found.setdefault((one.verdict.kind or "", one.verdict.component, text), []).append(one)
    causes = [ErrorCause(*key, len(members), members[0]) for key, members in found.items()]
    return sorted(causes, key=lambda cause: -cause.num_cases)


def _out_of_time(done: int, budget_s: float | None) -> str:
    times = f"{done} run{'s' * (done != 1)}"
    return f"the budget of {budget_s or 0:.0f} s ended after {times}, and the fault still fired: give more time for the rest"


def _why_not(last: Injected | None, limit: int, what: str) -> str:
    if last is None:
        return f"after {limit} runs the fault still fired; expected a run without {what}, so raise the limit of {limit}"
    if last.occurrence == 1:
        return f"the job has no such operation: {what} never came; expected one at least"
    kinds = {finding.kind for finding in last.verdict.findings}
    if kinds != {"fault-did-not-fire"}:
        return f"the last run, in which the fault did not fire, is no plain one: {last.verdict.findings[0].message}"
    return ""


@dataclass(frozen=True)
class _Task:
    scenario: Scenario
    bench: Workbench
    sentence: str
    attempt: int

    def __call__(self, occurrence: int) -> Injected:
        nth = "" if occurrence == 1 else f" occurrence {occurrence}"
        sentence = f"{self.sentence}{nth}" + (f" attempt {self.attempt}" if self.attempt else "")
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{self.scenario.name}-{self.sentence}{occurrence:03d}")
        faults, attempts = (*self.scenario.faults, sentence), max(self.scenario.max_attempts, self.attempt + 2)
        verdict, directory = run_case(
            self.scenario.model_copy(update={"name": name, "faults": faults, "max_attempts": attempts}), self.bench
        )
        records, _ = read_records(directory.attempt(self.attempt) / "attempt.jsonl")
        fired = [record for record in records if record["event"] == "fired" and record.get("fault") == sentence]
        call, path = (str(fired[0].get("call")), str(fired[0].get("path"))) if fired else ("", "")
        return Injected(occurrence, call, path, verdict, directory.path)


def _tidy(judged: Sequence[Injected], last: Injected | None, causes: Sequence[ErrorCause]) -> None:
    kept = {cause.first.directory for cause in causes}
    for one in judged:
        if one.verdict.outcome != "INCONCLUSIVE" and one.directory not in kept:
            shutil.rmtree(one.directory, ignore_errors=True)
    if last is not None:
        shutil.rmtree(last.directory, ignore_errors=True)
