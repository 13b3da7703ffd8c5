"""What was saved is what is there after the load, component by component, bit by bit.

Holds when, for every rank of every restart on an unchanged world size: each component's digest right after the load
equals the one right before the save of that very checkpoint, in the attempt that wrote it, and equals the uninterrupted
run's before the same save; and each digest before a later save, and at the end, equals the uninterrupted run's at the same
batch. So what was restored and then overwritten, or not moved on after the resume, is found at the next save, also where the
loss does not feel it.

Does not verify: anything across a change of world size (ranks then hold other parts, and it says nothing); components for
which the trainer logs no digest; that the digest covers all of its component. With a baseline that differs from itself, or
is a plainer job, it compares the load with the save only.
"""

from __future__ import annotations

from harness.oracle.finding import COMPONENTS, Finding, fail, inconclusive
from harness.oracle.history import History, Resume, Save, saves
from harness.store import AttemptRun, Baseline, RankLog, Run

_ORACLE = "state"
ABSENT = "absent"
BEFORE_SAVE = "before the save"
IN_BASELINE = "in the uninterrupted run"
# What follows from the gradients of a batch, the later the further.
_CONSEQUENCES = ("scaler", "optimizer", "model", "buffers", "ema")


def state(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares the digests after each load with those before the save."""
    history = History(run)
    findings = []
    for attempt in run.attempts[1:]:
        for resume in history.resumes[attempt.index]:
            lost = _one_load(run, baseline, history, attempt, resume) if resume.name else []
            findings += lost
            if not lost and _comparable(run, baseline, attempt, resume.rank):
                findings += _drifted(baseline, attempt, resume)
    # The components in the order of the vocabulary: the model before what depends on it.
    return sorted(findings, key=lambda finding: (finding.attempt or 0, _order(finding.component), finding.rank or 0))


def _comparable(run: Run, baseline: Baseline, attempt: AttemptRun, rank: int) -> bool:
    same = attempt.world_size == baseline.world_size and not baseline.unstable and rank in baseline.ranks
    return same and run.plan.scenario.compare_with == "same"


def _drifted(baseline: Baseline, attempt: AttemptRun, resume: Resume) -> list[Finding]:
    """The first moment after a good load at which a component is not what it is in the uninterrupted run; one finding.

    What draws or counts by itself is named before what follows from gradients: a wrong generator makes other weights within
    a batch, never the other way round.
    """
    expected = _moments(baseline.ranks[resume.rank], 0)
    for (batch, moment), digests in _moments(attempt.ranks[resume.rank], resume.batch).items():
        golden = expected.get((batch, moment))
        if golden is None:
            continue
        wrong = [name for name in golden.keys() | digests.keys() if golden.get(name) != digests.get(name)]
        if wrong:
            name = min(wrong, key=lambda one: (_follows(one), one))
            others = ", ".join(sorted(set(wrong) - {name}))
            where = f"before the save of batch {batch}" if moment == "save" else f"at the end, after batch {batch},"
            text = f"{name} of rank {resume.rank} {where} in attempt {attempt.index} is not that of the uninterrupted run"
            text += f", although the load was right (nor are {others})" if others else ", although the load was right"
            place = {"component": name, "rank": resume.rank, "attempt": attempt.index, "file": resume.name or None}
            found = digests.get(name) or ABSENT
            return [fail("state-lost", _ORACLE, text, expected=golden.get(name) or ABSENT, found=found, **place)]
    return []


def _moments(log: RankLog, start: int) -> dict[tuple[int, str], dict[str, str]]:
    """(batches done, `save` or `end`) → digests, in order; of a batch that was saved twice the last."""
    found: dict[tuple[int, str], dict[str, str]] = {}
    batch = start
    for record in log.records:
        if record["event"] == "batch" and isinstance(record.get("batch"), int):
            batch = record["batch"]
        elif record["event"] == "state" and record.get("moment") in ("save", "end"):
            found[batch, str(record["moment"])] = record["digests"]
    return found


def _follows(component: str) -> int:
    return _CONSEQUENCES.index(component) + 1 if component in _CONSEQUENCES else 0


def _order(component: str) -> int:
    return COMPONENTS.index(component.partition(".")[0])


def _one_load(run: Run, baseline: Baseline, history: History, attempt: AttemptRun, resume: Resume) -> list[Finding]:
    writer = _writer(run, history, attempt, resume)
    golden: Save | None = None
    if attempt.world_size == baseline.world_size and not baseline.unstable and resume.rank in baseline.ranks:
        golden = _matching(saves(baseline.ranks[resume.rank], 0), resume)
    loads = attempt.ranks[resume.rank].of("state", moment="load")
    if not loads:
        return _unlogged(attempt, resume, writer or golden)
    after: dict[str, str] = loads[0]["digests"]
    findings: list[Finding] = []
    for before, where in ((writer, BEFORE_SAVE), (golden, IN_BASELINE)):
        if before is None:
            continue
        seen = {finding.component for finding in findings}
        findings += [
            _lost(attempt, resume, component, before.digests.get(component), after.get(component), where)
            for component in sorted(before.digests.keys() | after.keys())
            if before.digests.get(component) != after.get(component) and component not in seen
        ]
    return findings


def _writer(run: Run, history: History, attempt: AttemptRun, resume: Resume) -> Save | None:
    """The save that wrote the checkpoint, by the same rank; None where it is unknown or was done on other ranks."""
    # What was committed counts before what was only begun: a save that was cut short is not what was loaded.
    commit = next((commit for commit in reversed(history.standing(attempt.index)) if commit.name == resume.name), None)
    indices = [commit.attempt] if commit is not None else list(range(attempt.index - 1, -1, -1))
    for index in indices:
        found = _matching(history.saves[index].get(resume.rank, []), resume)
        if found is not None:
            return found if run.attempts[index].world_size == attempt.world_size else None
    return None


def _matching(found: list[Save], resume: Resume) -> Save | None:
    return next((s for s in reversed(found) if (s.name, s.step) == (resume.name, resume.step) and s.digests), None)


def _unlogged(attempt: AttemptRun, resume: Resume, before: Save | None) -> list[Finding]:
    # A rank that died between its load and its first batch has nothing to answer for.
    if before is None or not attempt.ranks[resume.rank].batches:
        return []
    message = f"rank {resume.rank} logged its state at the save of {resume.name}, not after the load of attempt {attempt.index}"
    return [inconclusive("not-comparable", _ORACLE, message, rank=resume.rank, attempt=attempt.index)]


def _lost(attempt: AttemptRun, resume: Resume, component: str, before: str | None, after: str | None, where: str) -> Finding:
    expected, found = before or ABSENT, after or ABSENT
    return fail(
        "state-lost",
        _ORACLE,
        f"{component} of rank {resume.rank} after the load of {resume.name} (attempt {attempt.index}) is not what it was {where}",
        component=component,
        step=resume.step,
        rank=resume.rank,
        file=resume.name,
        attempt=attempt.index,
        expected=expected,
        found=found,
    )


def short(digest: str) -> str:
    """The first digits of a digest, enough to tell two apart."""
    return digest if digest == ABSENT else f"{digest[:4]}…"
