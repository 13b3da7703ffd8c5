"""The last good checkpoint is never lost, and what is not needed does not pile up.

Holds when, at the end of every attempt, the checkpoint that was committed last (and that the harness left alone) is still
there byte for byte (its files may have grown, as a log does), or a newer one of the same name, from which the next attempt
resumed; a foreign job may also have gone on with no less from something else. And, after a clean end (every rank with exit code
0, no fault in that attempt), there is no temporary file, no directory of a checkpoint that was never committed, and no more than
keep-last checkpoints. A foreign job, that has saved after its resume, has then removed the earlier attempts' checkpoints that the
uninterrupted run has removed in the end.

Does not verify: moments within an attempt (a checkpoint could be gone and come back; `harness.crash` looks at those);
checkpoints of which only the committing rename was seen, since their bytes were never recorded; empty directories; the
number of checkpoints and the uncommitted directories of a foreign trainer, whose layout is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from harness.checkpoint_files import top_level
from harness.fault import matches_path
from harness.oracle.exports import names_in
from harness.oracle.finding import Finding, fail
from harness.oracle.history import Commit, History, finished, live_faults_fired, lost_files, resume_record
from harness.scenario import Command, Reference
from harness.store import AttemptRun, Baseline, Files, Run

_ORACLE = "retention"


def retention(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares what was committed with what is there at the end of each attempt, and tidiness at the last end."""
    history = History(run, baseline)
    findings: list[Finding] = []
    released: list[Commit] = []
    for attempt in run.attempts:
        hit = history.damaged(attempt.index, "end")
        whole = [
            commit for commit in history.standing(attempt.index + 1) if not commit.tops & hit.keys() and commit not in released
        ]
        if whole and _is_held_elsewhere(run, history, attempt, whole[-1]):
            released += [commit for commit in whole if commit.batch <= whole[-1].batch]
        elif whole and not findings:  # once lost it stays lost; the first time is the one to look at
            findings += _lost(attempt, _as_it_stands(run, history, attempt, whole[-1]))
    if run.attempts:
        findings += _untidy(run, history, run.attempts[-1]) + _piled_up(run, history, run.attempts[-1], baseline)
    return findings


def _is_held_elsewhere(run: Run, history: History, attempt: AttemptRun, commit: Commit) -> bool:
    """Whether a foreign job went on with no less than a commit holds.

    It has other files than those that were seen to be saved (a copy), or was cut after it had removed the old checkpoint for a
    newer one that was whole, and before it had said so.
    """
    if not isinstance(run.plan.scenario.workload, Command) or not lost_files(commit, attempt, "end"):
        return False
    if attempt.index + 1 == len(run.attempts) and not finished(attempt):
        # Nobody has said that a save was done with which a failing job had replaced it.
        return bool(history.newer_at_end(attempt, commit))
    # The next attempt that came so far as to say where it began; others were cut before.
    later = [resume for one in run.attempts[attempt.index + 1 :] if (resume := history.resume_of(one.index)) is not None]
    if not later:
        # A job that was to refuse, and did, says no more of what it found than one that fails.
        return run.plan.scenario.expect == "refuses" and bool(history.newer_at_end(attempt, commit))
    resume = later[0]
    record = resume_record(run.attempts[resume.attempt].ranks[resume.rank]) or {}
    # Where only the data or a name tells the position, nobody knows what it really went on with.
    return resume.batch >= commit.batch > 0 and str(record.get("told_by", "model")).startswith("model")


def _as_it_stands(run: Run, history: History, attempt: AttemptRun, commit: Commit) -> Commit:
    """The commit, or the newer one that had taken its name when its attempt was cut, and that nobody had been told of."""
    for later in run.attempts[commit.attempt + 1 : attempt.index + 2]:
        resume, files = history.resume_of(later.index), later.files("begin")
        if resume is not None and files is not None and resume.name in commit.tops and resume.batch > commit.batch:
            own = {path: content for path, content in files.items() if top_level(path) in commit.tops}
            return replace(commit, batch=resume.batch, files=own)
    return commit


def _lost(attempt: AttemptRun, commit: Commit) -> list[Finding]:
    files = attempt.files("end")
    gone = lost_files(commit, attempt, "end")
    if not gone or files is None or commit.files is None:
        return []
    path = gone[0]
    found = _content(files.get(path))
    return [
        fail(
            "last-good-lost",
            _ORACLE,
            f"{commit.name}, committed in attempt {commit.attempt} and the newest, is no longer whole at the end of "
            f"attempt {attempt.index}: {path} ({len(gone)} of {len(commit.files)} files)",
            component="checkpoint-files",
            file=path,
            attempt=attempt.index,
            expected=_content(commit.files[path]),
            found=found,
        )
    ]


def _content(entry: tuple[int, str] | None) -> str:
    return "no file" if entry is None else f"{entry[0]} bytes, sha256 {entry[1][:12]}…"


def _untidy(run: Run, history: History, last: AttemptRun) -> list[Finding]:
    files = last.files("end")
    if files is None or not finished(last) or live_faults_fired(last):
        return []
    temporary = sorted(path for path in files if any(part.endswith(".tmp") for part in PurePath(path).parts))
    findings = []
    if temporary:
        text = f"{len(temporary)} temporary files are left after a clean end, first {temporary[0]}"
        findings.append(_left(last, text, temporary[0], "no temporary file", f"{len(temporary)} temporary files"))
    workload = run.plan.scenario.workload
    if isinstance(workload, Reference):
        # What the harness broke may still stand there: it is no left-over of the trainer's.
        hit = history.damaged(last.index, "end")
        whole = {path: content for path, content in files.items() if top_level(path) not in hit and path not in temporary}
        findings += _checkpoints(last, whole, workload.commit_pattern, workload.keep_last + _not_rotated(run, history))
    return findings


def _not_rotated(run: Run, history: History) -> int:
    """How many old checkpoints may be left: rotation follows a commit, and whoever dies in between leaves one more.

    In an attempt a save that has begun says that all that belongs to the one before it is done.
    """
    left = 0
    for attempt in run.attempts:
        begun = len(history.saves[attempt.index].get(0, []))
        if begun > 1 or (begun and finished(attempt)):
            left = 0
        left += bool(begun) and not finished(attempt)
    return left


def _checkpoints(last: AttemptRun, files: Files, pattern: str, keep_last: int) -> list[Finding]:
    committed = {top_level(path) for path in files if matches_path(pattern, path)}
    uncommitted = sorted({top_level(path) for path in files if matches_path("step-*/**", path)} - committed)
    findings = []
    if uncommitted:
        text = f"{uncommitted[0]} is left after a clean end, and was never committed ({len(uncommitted)} such)"
        findings.append(_left(last, text, uncommitted[0], "committed checkpoints only", f"{len(uncommitted)} uncommitted"))
    if len(committed) > keep_last:
        text = f"{len(committed)} checkpoints are left after a clean end; {keep_last} are to be kept"
        findings.append(_left(last, text, min(committed), f"at most {keep_last}", f"{len(committed)}"))
    return findings


def _piled_up(run: Run, history: History, last: AttemptRun, baseline: Baseline) -> list[Finding]:
    """What a resumed foreign job no longer knows to be its own, such as the last checkpoint of the process before."""
    files, golden = last.files("end"), baseline.files
    same = isinstance(run.plan.scenario.workload, Command) and last.world_size == baseline.world_size
    if not same or files is None or golden is None or not finished(last) or live_faults_fired(last):
        return []
    if not last.index or not history.commits[last.index]:
        return []  # rotation follows a save
    own = {name for commit in history.commits[last.index] for name in commit.tops} | history.damaged(last.index, "end").keys()
    earlier = {name for found in history.commits[: last.index] for commit in found for name in commit.tops} - own
    said = [record for log in baseline.ranks.values() for record in log.of("save", moment="end")]
    removed = {name for record in said for name in names_in(record)} - set(map(top_level, golden))
    left = sorted(earlier & removed & set(map(top_level, files)))
    if not left:
        return []
    text = f"{left[0]} is left after a clean end, and the uninterrupted run had removed it ({len(left)} such)"
    return [_left(last, text, left[0], "removed, as in the uninterrupted run", f"{len(left)} more")]


def _left(last: AttemptRun, text: str, file: str, expected: str, found: str) -> Finding:
    where = {"component": "checkpoint-files", "file": file, "attempt": last.index}
    return fail("retention", _ORACLE, text, expected=expected, found=found, **where)
