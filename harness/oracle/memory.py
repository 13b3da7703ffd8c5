"""A resumed process holds no more memory than one that was never interrupted.

Holds when, of a job that is watched from inside: a few batches after its load a rank holds no more memory, beside what it held
when torch was imported, than the uninterrupted run after as many batches, give or take a quarter of the checkpoint; and loading
has at no moment taken more than that and two and a half times the checkpoint. A loaded dict that stays alive beside the model and
the optimizer that were filled from it is found so, and a load that reads everything twice.

Does not verify: memory of a device; states of less than 32 MB, beside which an allocator's own doings are large; other trainers
than those watched from inside.
"""

from __future__ import annotations

from harness.oracle.finding import Finding, fail
from harness.oracle.history import History, Resume
from harness.oracle.state import is_probed
from harness.store import AttemptRun, Baseline, RankLog, Run

_ORACLE = "memory"
_LEAST_BYTES = 32 << 20
# Held: of what was loaded the optimizer takes its state as it is, so that the weights alone are twice there: a third, with Adam.
# At most: one copy in the file's form, one in that of the job, and change.
_HELD, _PEAK = 0.25, 2.5


def memory(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares memory after each load with the uninterrupted run."""
    if not is_probed(run):
        return []
    history = History(run, baseline)
    sizes = {
        (index, name): sum(size for size, _ in (commit.files or {}).values())
        for index, commits in enumerate(history.commits)
        for commit in commits
        for name in commit.tops
    }
    findings = []
    for attempt in run.attempts[1:]:
        for resume in history.resumes[attempt.index]:
            known = [size for (index, name), size in sizes.items() if index < attempt.index and name == resume.name]
            if known and known[-1] >= _LEAST_BYTES and resume.rank in baseline.ranks:
                findings += _of_rank(attempt, baseline, resume, known[-1])
    return findings


def _of_rank(attempt: AttemptRun, baseline: Baseline, resume: Resume, size: int) -> list[Finding]:
    own, golden = (_figures(log) for log in (attempt.ranks[resume.rank], baseline.ranks[resume.rank]))
    if own is None or golden is None:
        return []
    grown, usual, peak = own["held_kib"] - own["before_kib"], golden["held_kib"] - golden["before_kib"], 0
    peak = own["peak_kib"] - own["before_kib"]
    where = {"component": "process", "step": resume.step, "rank": resume.rank, "file": resume.name, "attempt": attempt.index}
    limit = usual + _HELD * size / 1024
    if grown > limit:
        text = (
            f"rank {resume.rank} holds {_mb(grown - usual)} more after the load of {resume.name} (attempt {attempt.index}) than "
            f"the uninterrupted run after as many batches; the checkpoint is {_mb(size / 1024)}: what was loaded is still alive"
        )
        return [fail("load-memory", _ORACLE, text, expected=f"at most {_mb(limit)}", found=_mb(grown), **where)]
    limit = usual + _PEAK * size / 1024
    if peak > limit:
        text = (
            f"rank {resume.rank} took {_mb(peak)} while it loaded {resume.name} (attempt {attempt.index}), {_mb(peak - usual)} "
            f"more than training takes; the checkpoint is {_mb(size / 1024)}: it is in memory more than twice"
        )
        return [fail("load-memory", _ORACLE, text, expected=f"at most {_mb(limit)}", found=_mb(peak), **where)]
    return []


def _figures(log: RankLog) -> dict[str, int] | None:
    records = log.of("memory")
    if not records:
        return None
    found = {name: records[0].get(name) for name in ("before_kib", "peak_kib", "held_kib")}
    whole = {name: value for name, value in found.items() if isinstance(value, int)}
    return whole if len(whole) == len(found) else None


def _mb(kib: float) -> str:
    return f"{kib * 1024 / 1e6:.0f} MB"
