"""A job that is to resume gets done, and says so only then.

Holds, for a case that expects `resumes`, when in the last attempt every rank logged the end after all planned batches, at
the uninterrupted run's step, and left with exit code 0; no rank of any attempt left with 0 before that; and no restart
failed by itself, without a fault having hit it while it ran. A restart that says that it declines is a bad refusal: what it
was to resume from was left alone, or an older checkpoint was. Of a case that expects `resumes-or-refuses` a restart may fail.

Does not verify: that the work was right (`loss`, `state`); a process that did not end by itself (`liveness`); a restart in
which a fault fired, or in which a rank died by a signal that nobody here sent. A trainer that the harness has asked to end
(SIGTERM) is held to the same: exit code 0 says that all is done; a foreign one may leave with it, once it has saved. Where the
number of ranks has changed, how many batches a foreign job has is its own affair.
"""

from __future__ import annotations

from harness.fault import SignalFault
from harness.oracle.finding import Finding, fail, inconclusive
from harness.oracle.history import (
    HANGS,
    Commit,
    History,
    exit_of,
    exit_text,
    finished,
    foreign_deaths,
    live_faults_fired,
    lost_files,
    own_failures,
    parse_quietly,
    succeeded,
)
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, Record, Run

_ORACLE = "completion"
_QUOTED_LINES = 3


def completion(run: Run, baseline: Baseline) -> list[Finding]:
    """Follows the exits and the ends over all attempts."""
    expect = run.plan.scenario.expect
    if expect == "refuses" or not run.attempts:
        return []
    history = History(run, baseline)
    findings = [finding for attempt in run.attempts if not _may_leave(run, attempt) for finding in _silent_exits(attempt)]
    last = run.attempts[-1]
    if expect == "resumes":
        findings += [_crash(history, attempt) for attempt in run.attempts[1:] if _failed_by_itself(attempt)]
    elif last.index and _failed_by_itself(last):
        return findings
    if finished(last):
        return findings + _ends(run, last, baseline)
    return findings or _unfinished(last)


def _may_leave(run: Run, attempt: AttemptRun) -> bool:
    """Whether a foreign job was asked to end: many save, and leave with exit code 0 for a launcher that starts them again."""
    faults = [parse_quietly(record.get("fault")) for record in attempt.of("fired")]
    asked = any(isinstance(fault, SignalFault) and fault.signal == "sigterm" for fault in faults)
    return asked and isinstance(run.plan.scenario.workload, Command)


def _silent_exits(attempt: AttemptRun) -> list[Finding]:
    findings = []
    for rank, log in attempt.ranks.items():
        if log.ended or not succeeded(exit_of(attempt, rank)):
            continue
        done = log.batches[-1].batch if log.batches else 0
        findings.append(
            fail(
                "silent-exit",
                _ORACLE,
                f"rank {rank} left with exit code 0 after batch {done} of attempt {attempt.index}, without having ended",
                component="process",
                step=log.batches[-1].step if log.batches else None,
                rank=rank,
                attempt=attempt.index,
                expected="exit code 0 only when all is done",
                found=f"exit code 0 after batch {done}",
            )
        )
    return findings


def _ends(run: Run, last: AttemptRun, baseline: Baseline) -> list[Finding]:
    """Compares the final counters with the plan's and the uninterrupted run's."""
    if isinstance(run.plan.scenario.workload, Command) and last.world_size != baseline.world_size:
        return []
    golden = [record for log in baseline.ranks.values() for record in log.of("end")]
    planned = run.plan.scenario.workload.steps or (int(golden[0]["batches"]) if golden else None)
    findings = []
    for rank, log in last.ranks.items():
        end = log.of("end")[-1]
        where = {"component": "counters", "step": int(end["step"]), "rank": rank, "attempt": last.index}
        if planned is not None and end["batches"] != planned:
            kind = "silent-exit" if end["batches"] < planned else "diverged"
            text = f"rank {rank} ended after {end['batches']} batches; {planned} were planned"
            findings.append(fail(kind, _ORACLE, text, expected=f"{planned} batches", found=f"{end['batches']} batches", **where))
        elif golden and not baseline.unstable and end["step"] != golden[0]["step"]:
            text = f"rank {rank} ended at step {end['step']}, the uninterrupted run at step {golden[0]['step']}"
            findings.append(
                fail("diverged", _ORACLE, text, expected=f"step {golden[0]['step']}", found=f"step {end['step']}", **where)
            )
    return findings


def _failed_by_itself(attempt: AttemptRun) -> bool:
    return bool(own_failures(attempt)) and not live_faults_fired(attempt) and not foreign_deaths(attempt)


def _crash(history: History, attempt: AttemptRun) -> Finding:
    """A restart that failed; the root is the checkpoint, where that is what the trainer has lost."""
    failure = _first_to_speak(attempt)
    rank = int(failure["rank"])
    words = last_words(attempt, rank)
    what = f"{'the launcher' if rank < 0 else f'rank {rank}'} ended with {exit_text(failure)} in attempt {attempt.index}"
    where = {"rank": _speaker(attempt, rank), "attempt": attempt.index, "found": exit_text(failure)}
    lost = _lost_checkpoint(history, attempt)
    if lost is not None:
        commit, file, why = lost
        text = f"{commit.name} was committed in attempt {commit.attempt}, but {why}; {what}: {words}"
        expected = f"{file} as it was committed"
        return fail("last-good-lost", _ORACLE, text, component="checkpoint-files", file=file, expected=expected, **where)
    said = [str(record["error"]) for log in attempt.ranks.values() for record in log.of("refuse")]
    if said:
        text = f"{what}: it declined to resume: {said[0]}"
        return fail("bad-refusal", _ORACLE, text, component="checkpoint-files", expected="a resume", **where)
    text = f"{what}, though no fault had fired in it: {words}"
    return fail("resume-crashed", _ORACLE, text, component="process", expected="a resume", **where)


def _first_to_speak(attempt: AttemptRun) -> Record:
    """The failure to name: the first by time, but one whose rank says why before one that only lost its peers."""
    failures = own_failures(attempt)
    spoken = [f for f in failures if int(f["rank"]) in attempt.ranks and attempt.ranks[int(f["rank"])].of("refuse")]
    return (spoken or failures)[0]


def _speaker(attempt: AttemptRun, rank: int) -> int | None:
    """The rank to name: of a launcher's ranks the one that said that it gives up, if any did."""
    if rank >= 0:
        return rank
    return next((number for number, log in attempt.ranks.items() if log.of("refuse") or log.of("failed")), None)


def last_words(attempt: AttemptRun, rank: int) -> str:
    """The last lines that a rank wrote to stderr; what it logged as its error, where it wrote none."""
    lines = [line.strip() for line in attempt.stderr(rank).splitlines() if line.strip()]
    if lines:
        return " | ".join(lines[-_QUOTED_LINES:])
    log = attempt.ranks.get(rank)
    errors = [str(r["error"]) for event in ("failed", "refuse") for r in log.of(event)] if log else []
    return errors[-1] if errors else "nothing on stderr"


def _lost_checkpoint(history: History, attempt: AttemptRun) -> tuple[Commit, str, str] | None:
    """The newest committed checkpoint that the harness left alone, if it is no longer good; with a file and the reason."""
    newest = history.newest_undamaged(attempt.index)
    if newest is None:
        return None
    gone = lost_files(newest, attempt, "begin")
    if gone:
        return newest, gone[0], f"{gone[0]} is no longer what it was then"
    # Of a checkpoint whose save() never returned nobody knows the bytes; the trainer that refuses it by name does.
    refused = [str(record["error"]) for log in attempt.ranks.values() for record in log.of("refuse")]
    named = [error for error in refused if newest.name in error]
    if newest.files is None and named:
        return newest, newest.name, "is not complete"
    return None


def _unfinished(last: AttemptRun) -> list[Finding]:
    """The job is not done and nothing above says why."""
    hung = any(last.of("exited", kind=kind) for kind in HANGS)
    if hung or foreign_deaths(last) or not last.of("ended"):
        return []  # fired, liveness and control speak of those
    where = {"component": "process", "attempt": last.index}
    if live_faults_fired(last):
        text = f"attempt {last.index} was the last one, and a fault fired in it; expected a later attempt without one"
        return [inconclusive("not-comparable", _ORACLE, text, **where)]
    ranks = [rank for rank in range(last.world_size) if not succeeded(exit_of(last, rank))]
    if not ranks:
        return []  # all left with exit code 0 and only logs are missing: not the trainer's failure, and control speaks of it
    found = ", ".join(f"rank {rank}: {exit_text(exit_of(last, rank))}" for rank in ranks)
    text = f"attempt {last.index} was the last one, and the job was not done ({found})"
    if last.index == 0:
        return [inconclusive("not-comparable", _ORACLE, text, **where)]
    return [fail("resume-crashed", _ORACLE, text, expected="all planned batches done", found=found, **where)]
