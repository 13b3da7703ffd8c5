"""Nothing outlives the case.

Holds when, after each attempt, the supervisor saw no process of the job's tree, no shared-memory segment and no mount
that was not there before. Where the harness has sent SIGKILL to a rank, the processes and segments of that attempt are not
held against the trainer: a rank that was killed could not end its data-loading processes, which notice it some seconds later.

Does not verify: sockets and files outside the checkpoint directory; what another job on the machine may have left
meanwhile, if the supervisor could not tell it apart; anything after its one look.
"""

from __future__ import annotations

from harness.oracle.finding import Finding, fail
from harness.store import Baseline, Run

_ORACLE = "hygiene"
_KINDS = ("processes", "shared_memory", "mounts")


def hygiene(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Looks at what the supervisor found left over."""
    findings = []
    for attempt in run.attempts:
        killed = any(record.get("signal") == "SIGKILL" for record in attempt.of("exited"))
        for record in attempt.of("leftover"):
            for kind in ("mounts",) if killed else _KINDS:
                left = record.get(kind) or []
                if left:
                    names = ", ".join(_name(item) for item in left)
                    text = f"{len(left)} {kind.replace('_', ' ')} outlived attempt {attempt.index}: {names}"
                    where = {"component": "process", "attempt": attempt.index}
                    findings.append(fail("leak", _ORACLE, text, expected="none", found=names, **where))
    return findings


def _name(item: object) -> str:
    if isinstance(item, (list, tuple)) and len(item) == 2:
        return f"{item[1]} (pid {item[0]})"
    return str(item)
