"""Exit code 0 says that what was to be saved is saved.

Holds when no attempt in which all ranks have left with exit code 0 had its last save refused: a file operation of that save (or
of what it writes later on, in the background) failed with an error of the harness's, and nothing like it has succeeded since.
Only a foreign trainer is held to it: the reference trainer has its own word for a save that it may leave out. A save that was
refused is no commit either (`harness.oracle.history`).

Does not verify: saves before the last one, which a later one makes good; files that no operation of the fault's own kind and
pattern touches again under another name; a sync, a removal or a read that fails; disks that are too small as a whole; an end that
says with another exit code that it went wrong.
"""

from __future__ import annotations

from harness.oracle.finding import Finding, fail
from harness.oracle.history import Refused, finished, refused_saves
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, Run

_ORACLE = "unsaved"


def unsaved(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Looks at the last save of each attempt that ended well."""
    if not isinstance(run.plan.scenario.workload, Command):
        return []
    return [_finding(attempt, one) for attempt in run.attempts if finished(attempt) for one in refused_saves(attempt) if one.last]


def _finding(attempt: AttemptRun, refused: Refused) -> Finding:
    operation, path = refused.operation, str(refused.operation.get("path"))
    what = f"{operation.get('call') or operation.get('operation')} of {path} failed with {refused.error} and was not tried again"
    return fail(
        "silent-exit",
        _ORACLE,
        f"rank {refused.rank} left with exit code 0 in attempt {attempt.index}, although its last save failed: {what}",
        component="checkpoint-files",
        step=refused.step,
        rank=refused.rank,
        file=path,
        attempt=attempt.index,
        expected=f"{refused.name} saved, or another exit code",
        found=f"exit code 0, and {refused.error}",
    )
