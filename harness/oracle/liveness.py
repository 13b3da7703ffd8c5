"""Every rank of every attempt ends before its deadline.

Holds when no rank was still running at the deadline, and none that had finished its work failed to exit. The two are told
apart: the second is a known trap of torch (a process group that is freed at interpreter exit), not a wait for a peer.

Does not verify: how long a rank may wait before the deadline; a hang in an attempt in which a rank was killed by a signal
that nobody here sent (`fired` speaks of that); which collective is waited for.
"""

from __future__ import annotations

from harness.oracle.finding import Finding, fail
from harness.oracle.history import foreign_deaths
from harness.store import AttemptRun, Baseline, Record, Run

_ORACLE = "liveness"


def liveness(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Looks at how each process ended."""
    findings = []
    for attempt in run.attempts:
        if foreign_deaths(attempt):
            continue
        findings += [_hang(run, attempt, record) for record in attempt.of("exited", kind="hang")]
        findings += [_lingering(attempt, record) for record in attempt.of("exited", kind="finished-but-did-not-exit")]
    return findings


def _hang(run: Run, attempt: AttemptRun, record: Record) -> Finding:
    event, silent, step = _last_event(attempt, record)
    deadline = f"{run.plan.scenario.deadline_s:g} s"
    last = f"last event {event}{silent}"
    text = f"{_who(record)} was still running at the deadline of {deadline} in attempt {attempt.index}; {last}"
    return _finding(attempt, record, text, step, f"an end within {deadline}", last)


def _lingering(attempt: AttemptRun, record: Record) -> Finding:
    event, silent, step = _last_event(attempt, record)
    text = f"{_who(record)} finished its work but did not exit in attempt {attempt.index}; last event {event}{silent}"
    return _finding(attempt, record, text, step, "an exit once all is done", "finished but did not exit")


def _finding(attempt: AttemptRun, record: Record, text: str, step: int | None, expected: str, found: str) -> Finding:
    rank = int(record["rank"])
    where = {"component": "process", "step": step, "rank": None if rank < 0 else rank, "attempt": attempt.index}
    return fail("hang", _ORACLE, text, expected=expected, found=found, **where)


def _who(record: Record) -> str:
    return "the launcher" if int(record["rank"]) < 0 else f"rank {record['rank']}"


def _last_event(attempt: AttemptRun, record: Record) -> tuple[str, str, int | None]:
    """The last thing that a rank logged, how long before its end, and its step; of a launcher, by its latest rank."""
    rank = int(record["rank"])
    logs = [log for number, log in attempt.ranks.items() if number == rank or rank < 0]
    said = [entry for log in logs for entry in log.records]
    if not said:
        return "none", "", None
    last = max(said, key=lambda entry: float(entry.get("time_s") or 0)) if rank < 0 else said[-1]
    number = last.get("batch" if last["event"] == "batch" else "step")
    event = str(last["event"]) + (f" {number}" if isinstance(number, int) else "")
    step = last.get("step")
    silent = ""
    if last.get("time_s") is not None and record.get("time_s") is not None:
        silent = f", {float(record['time_s']) - float(last['time_s']):.1f} s before it was ended"
    return event, silent, step if isinstance(step, int) else None
