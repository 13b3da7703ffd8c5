"""No code that stands in a checkpoint is ever run.

Holds when the marker that a hostile payload makes (`harness.inject.tamper`) was not there at the end of any attempt. It
matters also where the checkpoint is refused in the end, and where the job goes on as if nothing had been: a loader that
runs what it reads has then already run it.

Does not verify: code that does something else than to make the marker; payloads of formats that the harness cannot tamper
with; an attempt after which the supervisor died before it could look.
"""

from __future__ import annotations

from harness.fault import DamageFault
from harness.oracle.finding import Finding, fail
from harness.oracle.history import parse_quietly
from harness.store import AttemptRun, Baseline, Run

_ORACLE = "execution"


def execution(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Looks for the first attempt after which the marker was there."""
    for attempt in run.attempts:
        for record in attempt.of("executed"):
            file = _hostile_file(run, attempt.index)
            text = f"code from {file or 'a checkpoint'} was run in attempt {attempt.index}: it made {record.get('path')}"
            where = {"component": "checkpoint-files", "file": file, "attempt": attempt.index}
            return [fail("code-executed", _ORACLE, text, expected="data only", found=f"{record.get('path')} made", **where)]
    return []


def _hostile_file(run: Run, until: int) -> str | None:
    """The newest file into which code had been put; the newest checkpoint is the one that is read first."""
    hit = [str(record.get("path")) for past in run.attempts[: until + 1] for record in _hostile(past)]
    return max(hit, default=None)


def _hostile(attempt: AttemptRun) -> list[dict[str, object]]:
    found = []
    for record in attempt.of("damaged"):
        fault = parse_quietly(record.get("fault"))
        # The manifest beside it was corrected only; no code stands in it.
        if isinstance(fault, DamageFault) and fault.tampering == "hostile-pickle" and not _is_manifest(record.get("path")):
            found.append(record)
    return found


def _is_manifest(path: object) -> bool:
    return str(path).endswith(".json")
