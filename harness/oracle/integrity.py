"""A checkpoint that the harness has damaged is never loaded as good, and never passed over in silence.

Holds when no rank resumed from a checkpoint with a file that was really changed, unless it had been written anew since;
and when each damaged checkpoint that is newer than the one resumed from is named among those that the trainer skipped.

Does not verify: damage that changed no byte (recorded as `unchanged`); what a load does with damage that it does notice
(`completion`, `refusal`); damage by anyone else. A checkpoint of which the whole, or the file that commits it, was deleted
is invisible, and need not be named. A foreign job that is watched from inside is held to less: that it resumed from a damaged
checkpoint counts where it is felt in losses or state, and only where it began anew must what it printed name what it skipped.
"""

from __future__ import annotations

from harness.checkpoint_files import top_level
from harness.fault import DamageFault, matches_path
from harness.oracle.finding import Finding, fail
from harness.oracle.history import History, Resume, parse_quietly, resume_record
from harness.oracle.loss import loss
from harness.oracle.state import state
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, Record, Run

_ORACLE = "integrity"


def integrity(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares what was damaged with what was loaded and what was skipped."""
    history = History(run, baseline)
    workload = run.plan.scenario.workload
    watched = isinstance(workload, Command) and workload.probe
    findings = []
    for attempt in run.attempts[1:]:
        damaged = history.still_damaged(attempt.index)
        resumes = history.resumes[attempt.index]
        hit = [(resume, record) for resume in resumes for record in _hit(history, attempt.index, resume.name, damaged)[:1]]
        if hit and (not watched or loss(run, baseline) or state(run, baseline)):
            findings += [_accepted(resume, record) for resume, record in hit]
        if resumes and not (watched and resumes[0].batch):
            findings += _unnamed(run, history, attempt, resumes[0], damaged)
    return findings


def _hit(history: History, attempt: int, name: str, damaged: dict[str, list[Record]]) -> list[Record]:
    """What was damaged of a checkpoint, which may lie under several names."""
    tops = {name}.union(*(commit.tops for commit in history.standing(attempt) if name in commit.tops))
    return [record for top in sorted(tops, key=lambda one: (one != name, one)) for record in damaged.get(top, [])]


def _accepted(resume: Resume, record: Record) -> Finding:
    path = str(record["path"])
    return fail(
        "corrupt-accepted",
        _ORACLE,
        f"rank {resume.rank} resumed from {resume.name} in attempt {resume.attempt}, although {path} had been damaged",
        component="checkpoint-files",
        step=resume.step,
        rank=resume.rank,
        file=path,
        attempt=resume.attempt,
        expected=f"{resume.name} skipped or refused",
        found=f"resumed from {resume.name}",
    )


def _unnamed(run: Run, history: History, attempt: AttemptRun, resume: Resume, damaged: dict[str, list[Record]]) -> list[Finding]:
    said = [resume_record(log) or {} for log in attempt.ranks.values()]
    named = {top_level(str(entry["path"])) for record in said for entry in record.get("skipped") or []}
    printed = _printed(run, attempt)
    findings = []
    for commit in history.standing(attempt.index):
        hit = next((name for name in sorted(commit.tops) if damaged.get(name)), "")
        if not hit or commit.batch <= resume.batch or commit.tops & named or any(name in printed for name in commit.tops):
            continue
        records = damaged[hit]
        if _invisible(run, attempt, hit, records):
            continue
        path = str(records[0]["path"])
        findings.append(
            fail(
                "bad-refusal",
                _ORACLE,
                f"attempt {attempt.index} passed over {commit.name}, where {path} had been damaged, without naming it",
                component="checkpoint-files",
                step=resume.step,
                rank=resume.rank,
                file=path,
                attempt=attempt.index,
                expected=f"{commit.name} among the skipped",
                found=", ".join(sorted(named)) or "none skipped",
            )
        )
    return findings


def _printed(run: Run, attempt: AttemptRun) -> str:
    """What a foreign job has printed, which logs no skips."""
    if not isinstance(run.plan.scenario.workload, Command):
        return ""
    return "\n".join(file.read_text(errors="replace") for file in sorted(attempt.path.glob("*.std*")))


def _invisible(run: Run, attempt: AttemptRun, name: str, records: list[Record]) -> bool:
    """Whether nothing is left that looks like a checkpoint, by the damage or by a trainer that has begun to remove it."""
    begin, pattern = attempt.files("begin"), run.plan.scenario.workload.commit_pattern
    if begin is not None:
        own = [path for path in begin if top_level(path) == name]
        if not own or (pattern is not None and not any(matches_path(pattern, path) for path in own)):
            return True
    deleted = [str(r["path"]) for r in records if _deletes(r)]
    return pattern is not None and any(matches_path(pattern, path) for path in deleted)


def _deletes(record: Record) -> bool:
    fault = parse_quietly(record.get("fault"))
    return isinstance(fault, DamageFault) and fault.effect == "delete"
