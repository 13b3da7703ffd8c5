"""What was recorded can be judged at all: the baseline is stable and complete, and so are the logs.

Holds when the uninterrupted run was the same twice and ended on every rank; every line of every log could be read; every
rank that did work has a log; each attempt was launched and ended; no writes escaped the gate; and the first launch did not
fail by itself. All that does not hold makes the case INCONCLUSIVE; a first launch that fails where a plainer job did not, or
only because an operation of a rank came later than another's (`hold`), is a FAIL.

Does not verify: that the uninterrupted run is right, only that it repeats itself; differences that both golden runs do not
show (two runs can agree by luck).
"""

from __future__ import annotations

from harness.fault import HoldFault
from harness.oracle.completion import last_words
from harness.oracle.finding import Finding, fail, inconclusive
from harness.oracle.history import (
    exit_of,
    exit_text,
    foreign_deaths,
    live_faults_fired,
    own_failures,
    parse_quietly,
    succeeded,
)
from harness.store import AttemptRun, Baseline, Record, Run

_ORACLE = "control"
_SHOWN_PROBLEMS = 5
UNENDED = "the harness stopped during it, or it still runs"


def control(run: Run, baseline: Baseline) -> list[Finding]:
    """Checks the records themselves."""
    findings = _baseline(baseline)
    broken = run.problems[:_SHOWN_PROBLEMS]
    findings += [inconclusive("not-comparable", _ORACLE, f"broken log: {text}", void=True) for text in broken]
    if not run.attempts:
        findings.append(inconclusive("harness-error", _ORACLE, "no attempt was recorded; expected at least one", void=True))
    for attempt in run.attempts:
        findings += _attempt(attempt)
    return findings + (_first_launch(run) if run.attempts else [])


def _baseline(baseline: Baseline) -> list[Finding]:
    findings = []
    if baseline.unstable:
        text = f"the uninterrupted run differs from itself: {baseline.unstable}"
        findings.append(inconclusive("baseline-unstable", _ORACLE, text, expected="two equal runs", found=baseline.unstable))
    # Where nothing of it could be read, that is why its logs are missing.
    unread = not baseline.ranks and baseline.problems
    problems = []
    for rank in range(0 if unread else baseline.world_size):
        if rank not in baseline.ranks:
            problems.append(f"the uninterrupted run has no log of rank {rank}")
        elif not baseline.ranks[rank].ended:
            problems.append(f"the uninterrupted run did not end on rank {rank}")
    for log in baseline.ranks.values():
        _ = log.batches  # malformed batches are found when they are first read
        problems += [f"broken log of the uninterrupted run: {text}" for text in log.problems]
    steps = {tuple(batch.batch for batch in log.batches) for log in baseline.ranks.values()}
    if len(steps) > 1 and not problems:
        problems.append("the ranks of the uninterrupted run did not do the same batches")
    problems += [f"broken log of the uninterrupted run: {text}" for text in baseline.problems]
    return findings + [inconclusive("not-comparable", _ORACLE, text, void=True) for text in problems[:_SHOWN_PROBLEMS]]


def _attempt(attempt: AttemptRun) -> list[Finding]:
    where = {"attempt": attempt.index}
    if not attempt.of("launched"):
        return [inconclusive("harness-error", _ORACLE, f"attempt {attempt.index} was never launched", void=True, **where)]
    if not attempt.of("ended"):
        text = f"attempt {attempt.index} was never ended: {UNENDED}"
        return [inconclusive("harness-error", _ORACLE, text, void=True, **where)]
    escaped = [f"unseen writes in attempt {attempt.index}: {record.get('what')}" for record in attempt.of("escaped")]
    findings = [inconclusive("not-comparable", _ORACLE, text, **where) for text in escaped[:_SHOWN_PROBLEMS]]
    for rank, log in attempt.ranks.items():
        for record in log.of("probe-failed"):
            text = f"the probe of rank {rank} failed in attempt {attempt.index} and saw nothing more: {record.get('error')}"
            findings.append(inconclusive("not-comparable", _ORACLE, text, rank=rank, **where))
    for rank, log in attempt.ranks.items():
        if log.batches and not log.of("resume"):
            text = f"rank {rank} of attempt {attempt.index} did batches and never said where it began (no `resume` record)"
            findings.append(inconclusive("not-comparable", _ORACLE, text, rank=rank, **where))
        if rank >= attempt.world_size:
            text = f"there is a log of rank {rank} in attempt {attempt.index}, which has {attempt.world_size} ranks"
            findings.append(inconclusive("not-comparable", _ORACLE, text, rank=rank, void=True, **where))
    for rank in range(attempt.world_size):
        exit_record = exit_of(attempt, rank)
        if rank in attempt.ranks or not (exit_record is None or succeeded(exit_record)):
            continue  # a rank that failed or was killed before its first line has its end to speak for it
        text = f"rank {rank} of attempt {attempt.index} has no event log ({exit_text(exit_record)})"
        findings.append(inconclusive("not-comparable", _ORACLE, text, rank=rank, void=True, **where))
    return findings


def _first_launch(run: Run) -> list[Finding]:
    """The same job ran to its end twice; what ends its first launch without a fault has nothing to do with a resume.

    Where it is compared with a plainer job, only that one has shown that it can be done, and this one has failed.
    """
    attempt = run.attempts[0]
    failures, faults = own_failures(attempt), [parse_quietly(record.get("fault")) for record in live_faults_fired(attempt)]
    if not failures or foreign_deaths(attempt) or not all(isinstance(fault, HoldFault) for fault in faults):
        return []
    rank = int(failures[0]["rank"])
    if faults:
        return [_cannot_wait(attempt, str(faults[0]), failures[0])]
    text = f"attempt 0 failed before any fault had fired: rank {rank} ended with {exit_text(failures[0])}"
    if run.plan.scenario.compare_with != "same":
        said = [str(record["error"]) for log in attempt.ranks.values() for record in log.of("failed")]
        text += f": {said[0]}" if said else ""
        where = {"component": "process", "rank": rank, "attempt": 0}
        return [fail("job-failed", _ORACLE, text, expected="done, as the plain job was", found=exit_text(failures[0]), **where)]
    return [inconclusive("not-comparable", _ORACLE, text, component="process", rank=rank, attempt=0)]


def _cannot_wait(attempt: AttemptRun, hold: str, failure: Record) -> Finding:
    """A launch in which nothing was done to the job but that an operation came later: any machine may do as much."""
    rank = int(failure["rank"])
    who = f"rank {rank}" if rank >= 0 else "the launcher"
    file = next((record.get("path") for record in attempt.of("fired")), None)
    text = f"{who} ended with {exit_text(failure)} in attempt 0, in which nothing had happened but '{hold}'"
    text += f": {last_words(attempt, rank)}"
    where = {"component": "process", "rank": rank if rank >= 0 else None, "attempt": 0, "file": file}
    return fail("job-failed", _ORACLE, text, expected="no order of the ranks that fails", found=exit_text(failure), **where)
