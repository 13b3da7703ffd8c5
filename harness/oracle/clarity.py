"""A job that ends because the disk has refused something says what was refused, and on which checkpoint.

Holds when, in each attempt that failed by itself after the harness had made a file operation fail, some rank wrote to stderr
the system's error (its name or its text) and the name of the checkpoint or of the file; of an operation on the checkpoint
directory itself, the error is enough. Only the reference trainer is held to it: libraries of others may swallow the error.

Does not verify: attempts in which a rank was killed, too; errors that the trainer got over; what a log file says.
"""

from __future__ import annotations

import errno
import os
from pathlib import PurePath

from harness.checkpoint_files import top_level
from harness.fault import ErrnoFault
from harness.oracle.completion import last_words
from harness.oracle.finding import Finding, fail
from harness.oracle.history import foreign_deaths, live_faults_fired, own_failures, parse_quietly
from harness.scenario import Reference
from harness.store import AttemptRun, Baseline, Record, Run

_ORACLE = "clarity"


def clarity(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Reads what the ranks of each failed attempt wrote."""
    if not isinstance(run.plan.scenario.workload, Reference):
        return []
    return [finding for attempt in run.attempts for finding in _one_attempt(attempt)]


def _one_attempt(attempt: AttemptRun) -> list[Finding]:
    fired = live_faults_fired(attempt)
    errors = [(fault, record) for record in fired if isinstance(fault := parse_quietly(record.get("fault")), ErrnoFault)]
    failures = own_failures(attempt)
    if not failures or not errors or len(errors) < len(fired) or foreign_deaths(attempt):
        return []
    named = [(fault, record) for fault, record in errors if fault.errno_name]
    text = "\n".join(attempt.stderr(rank) for rank in sorted(attempt.ranks))
    if not named or any(_says(text, fault.errno_name, record) for fault, record in named):
        return []
    fault, record = named[0]
    rank = int(failures[0]["rank"])
    path = str(record.get("path"))
    what = f"{record.get('call') or fault.point.operation} of {path}"
    return [
        fail(
            "bad-refusal",
            _ORACLE,
            f"attempt {attempt.index} failed after {what} by rank {record['rank']} had failed with {fault.errno_name}, "
            f"and no rank named that error and the checkpoint: {last_words(attempt, rank)}",
            component="process",
            rank=rank,
            file=path,
            attempt=attempt.index,
            expected=f"{fault.errno_name} and {_names(path)[0] if _names(path) else 'nothing more'} on stderr",
            found=last_words(attempt, rank),
        )
    ]


def _says(text: str, errno_name: str, record: Record) -> bool:
    names = _names(str(record.get("path")))
    error = errno_name in text or os.strerror(getattr(errno, errno_name)) in text
    return error and (not names or any(name in text for name in names))


def _names(path: str) -> list[str]:
    """What counts as naming the checkpoint: its name, or that of the file. The directory of all of them has no name here."""
    # What a temporary file is called beyond its first dot is nobody's business.
    return [] if path in (".", "") else [top_level(path).strip(".").split(".")[0], PurePath(path).name]
