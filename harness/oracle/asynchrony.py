"""A save that promises to go on in the background lets training go on.

Holds, for a format that saves asynchronously, when every rank does at least one batch between the beginning of a save and
its end, except for a save after the job's last batch.

Does not verify: how long the staging copy takes (`harness bench` measures it); formats that promise nothing of the kind.
"""

from __future__ import annotations

from harness.oracle.finding import Finding, fail
from harness.scenario import Reference
from harness.store import Baseline, RankLog, Run

_ORACLE = "asynchrony"


def asynchrony(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Looks at each rank's saves in each attempt; one finding an attempt is enough."""
    workload = run.plan.scenario.workload
    if not isinstance(workload, Reference) or not workload.saves_in_background:
        return []
    findings = []
    for attempt in run.attempts:
        blocked = [(rank, name) for rank, log in attempt.ranks.items() for name in _blocking(log, workload.steps)]
        if blocked:
            rank, name = blocked[0]
            text = f"{name} was written while rank {rank} did no batch, in attempt {attempt.index} ({len(blocked)} such saves)"
            where = {"component": "process", "rank": rank, "file": name, "attempt": attempt.index}
            findings.append(fail("blocking-save", _ORACLE, text, expected="training goes on", found="training waited", **where))
    return findings


def _blocking(log: RankLog, planned: int) -> list[str]:
    """The checkpoints that a rank committed without having done a batch since it began to save them."""
    found: list[str] = []
    done, began = 0, dict[str, int]()
    for record in log.records:
        if record["event"] == "batch" and isinstance(record.get("batch"), int):
            done = record["batch"]
        elif record["event"] == "save":
            name = str(record.get("checkpoint"))
            if record.get("moment") == "begin":
                began[name] = done
            elif record.get("moment") == "end" and began.get(name) == done and done < planned:
                found.append(name)
    return found
