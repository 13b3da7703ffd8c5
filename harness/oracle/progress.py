"""No more work is lost than what was done since the newest checkpoint.

Holds when every restart resumes, on all ranks alike, from a checkpoint that is at least as new as the newest one that was
committed before and that the harness did not damage, and no more batches are lost than lie between two saves (of a format
that saves in the background: between three).

Does not verify: that the checkpoint holds what it should (`state`, `loss`), that it was complete when it was committed
(its files are looked at by `retention`), or that a trainer that refused to start was right (`completion`, `refusal`). The
save interval is not held against a trainer whose save the harness made fail, or whose newest checkpoint it damaged. What a
foreign trainer saves apart from its checkpoints (`exports`: the best weights alone, say) is owed to nobody.
"""

from __future__ import annotations

from harness.checkpoint_files import top_level
from harness.oracle.finding import Finding, fail
from harness.oracle.history import Commit, History, Resume, live_faults_fired, resume_record
from harness.scenario import Reference
from harness.store import AttemptRun, Baseline, Run

_ORACLE = "progress"
# The copy is made by the thread that trains, and written by another, which begins when it gets round to it.
_BACKGROUND_LAG = 3


def progress(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares where each restart began with what had been committed."""
    history = History(run, baseline)
    findings = []
    for attempt in run.attempts[1:]:
        resumes = history.resumes[attempt.index]
        if not resumes:
            continue
        findings += _agreement(attempt, resumes)
        newest = history.newest_undamaged(attempt.index)
        if newest is not None and resumes[0].batch < newest.batch - _lag(newest, resumes[0]):
            findings.append(_older(attempt, resumes[0], newest))
        else:
            findings += _interval(run, history, attempt, resumes[0])
    return findings


def _lag(newest: Commit, resume: Resume) -> int:
    """How many batches a commit may hold less than were done when its save was seen to begin, if it is what was resumed from."""
    return _BACKGROUND_LAG if newest.background and newest.name == resume.name else 0


def _agreement(attempt: AttemptRun, resumes: list[Resume]) -> list[Finding]:
    first, last = resumes[0], resumes[-1]
    if (first.batch, first.step) == (last.batch, last.step):
        return []
    return [
        fail(
            "state-lost",
            _ORACLE,
            f"rank {first.rank} resumed from step {first.step} and rank {last.rank} from step {last.step}, "
            f"in attempt {attempt.index}; expected one and the same",
            component="counters",
            step=first.step,
            rank=first.rank,
            attempt=attempt.index,
            expected=f"step {last.step}",
            found=f"step {first.step}",
        )
    ]


def _older(attempt: AttemptRun, resume: Resume, newest: Commit) -> Finding:
    scratch = not resume.name or resume.batch == 0
    found = "started from scratch" if scratch else f"resumed from {resume.name}"
    reason = _skipped_because(attempt, newest.name)
    why = f"{newest.name} was committed and undamaged"
    if reason:
        why = f"{newest.name} was committed but is not complete: {reason}"
    elif newest.files == {}:  # none is there any more when the trainer goes on: its own rotation has taken it
        why = f"{newest.name} was saved, and the trainer had removed it again when that save was done"
    return fail(
        "restarted-from-scratch" if scratch else "lost-work",
        _ORACLE,
        f"attempt {attempt.index} {found}, losing {resume.lost} steps; {why}",
        component="checkpoint-files",
        step=resume.step,
        rank=resume.rank,
        file=newest.name,
        attempt=attempt.index,
        expected=f"resume from {newest.name}",
        found=found,
    )


def _skipped_because(attempt: AttemptRun, name: str) -> str:
    for log in attempt.ranks.values():
        for entry in (resume_record(log) or {}).get("skipped") or []:
            if top_level(str(entry["path"])) == name:
                return str(entry["reason"])
    return ""


def _since_last_batch(run: Run, attempt: AttemptRun) -> list[AttemptRun]:
    """The attempts whose work is lost: the last one that trained, and those after it, which died before their first batch."""
    past = run.attempts[: attempt.index]
    trained = [one.index for one in past if any(log.batches for log in one.ranks.values())]
    return past[trained[-1] :] if trained else past


def _save_failed(attempt: AttemptRun) -> bool:
    """Whether a save failed that the harness may have made fail."""
    failed = any(log.of("save", moment="failed") for log in attempt.ranks.values())
    return failed and bool(live_faults_fired(attempt))


def _interval(run: Run, history: History, attempt: AttemptRun, resume: Resume) -> list[Finding]:
    workload = run.plan.scenario.workload
    if workload.save_every is None:
        return []
    # A save in the background is committed when it is done, at the latest when the next one is due.
    most = workload.save_every * (2 if isinstance(workload, Reference) and workload.saves_in_background else 1)
    if resume.lost <= most:
        return []
    # What the harness has damaged may have been whole, even where nobody had said that its save was done.
    begun = [save for ranks in history.saves[: attempt.index] for found in ranks.values() for save in found]
    known = {name for commit in history.standing(attempt.index) if commit.batch > resume.batch for name in commit.tops}
    known |= {name for save in begun if save.batch > resume.batch for name in save.tops}
    if known & history.damaged(attempt.index).keys() or any(_save_failed(past) for past in _since_last_batch(run, attempt)):
        return []
    return [
        fail(
            "lost-work",
            _ORACLE,
            f"attempt {attempt.index} resumed from step {resume.step}, losing {resume.lost} steps; "
            f"no newer checkpoint had been committed although one is due every {workload.save_every}",
            component="checkpoint-files",
            step=resume.step,
            rank=resume.rank,
            attempt=attempt.index,
            expected=f"at most {most} lost steps",
            found=f"{resume.lost} lost steps",
        )
    ]
