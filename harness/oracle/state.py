"""What was saved is what is there after the load, component by component, bit by bit.

Holds when, for every rank of every restart on an unchanged world size: each component's digest right after the load
equals the one right before the save of that very checkpoint, in the attempt that wrote it, and equals the uninterrupted
run's before the same save; and each digest before a later save, and at the end, equals the uninterrupted run's at the same
batch. So what was restored and then overwritten, or not moved on after the resume, is found at the next save, also where the
loss does not feel it.

Over a change of the number of ranks, on which ranks hold other parts, the same holds for the digests of the whole job
(`harness.oracle.whole`) right after the load; later only for what no rounding enters: schedule, counters, position.

Does not verify: streams of random numbers that each rank has of its own, over a change of the number of ranks; components
for which the trainer logs no digest; that the digest covers all of its component. With a baseline that differs from itself,
or is a plainer job, it compares the load with the save only; of an attempt that goes on from work on another number of ranks
than the baseline's, the load with the save, and what no rounding enters with the baseline.
"""

from __future__ import annotations

import re
from dataclasses import replace

from harness.oracle.data import data
from harness.oracle.finding import COMPONENTS, Finding, fail, hex_text, inconclusive
from harness.oracle.history import History, Resume, Save, same_work, saves
from harness.oracle.loss import loss
from harness.oracle.whole import views, without_rounding
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, RankLog, Record, Run

_ORACLE = "state"
ABSENT = "absent"
BEFORE_SAVE = "before the save"
IN_BASELINE = "in the uninterrupted run"
_MOMENTS = {
    "save": "before the save of batch {}",
    "next": "before the batch that follows batch {}",
    "end": "at the end, after batch {},",
}
# Of a foreign job each rank's running statistics may be its own, and a scaler may be on another scale for other batches.
_OF_ONE_RANK = ("buffers",)
# Of a job that is compared with another one: wrong weights alone are somebody's doing, with a wrong optimizer gradients are.
_OF_GRADIENTS = ("optimizer",)
# What follows from the gradients of a batch, the later the further.
_CONSEQUENCES = ("scaler", "optimizer", "model", "buffers", "ema", "counters.loss_history")


def state(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares the digests after each load with those before the save."""
    history = History(run, baseline)
    findings = []
    if run.attempts and run.plan.scenario.compare_with in ("unsaved", "control") and loss(run, baseline):
        # The job itself is another one than it should be: where it begins to be.
        first = run.attempts[0]
        found = _first_drift([_drifted(run, baseline, first, Resume(0, 0, 0, "", rank, 0)) for rank in first.ranks])
        findings += [_of_gradients(one) if one.component in _OF_GRADIENTS else one for one in found]
    for attempt in run.attempts[1:]:
        lost: list[Finding] = []
        resumes = history.resumes[attempt.index]
        for resume in resumes:
            found = _one_load(run, baseline, history, attempt, resume) if resume.name else []
            lost += [one for one in found if one.component not in baseline.noise and not _is_nothing(run, baseline, one)]
        # What one rank has lost is in the gradients of all: that theirs is wrong later says nothing of their load.
        drifts = [] if lost else _first_drift([_drifted(run, baseline, attempt, resume) for resume in resumes])
        findings += lost or _of_batches(run, baseline, attempt, drifts)
    if is_probed(run) and not _is_felt(run, baseline, findings):
        findings = []
    # The components in the order of the vocabulary: the model before what depends on it.
    return sorted(findings, key=lambda finding: (finding.attempt or 0, _order(finding.component), finding.rank or 0))


def _of_gradients(drift: Finding) -> Finding:
    """What has come into the optimizer with a batch was in its gradients."""
    return replace(drift, component="gradients", message=f"{drift.message}: it came with the gradients of a batch")


def _of_batches(run: Run, baseline: Baseline, attempt: AttemptRun, drifts: list[Finding]) -> list[Finding]:
    """Of a foreign job: what follows from gradients is nobody's loss where the first loss after the resume was wrong already.

    What the probe digests right before that batch was right, so that something else went into it.
    """
    if not is_probed(run) or not any(_first_loss_differs(log, baseline.ranks.get(rank)) for rank, log in attempt.ranks.items()):
        return drifts
    text = "{}: it came with the gradients, the losses were wrong from the first batch after the resume on"
    return [
        replace(one, component="none", message=text.format(one.message)) if one.component in _CONSEQUENCES else one
        for one in drifts
    ]


def _first_loss_differs(log: RankLog, golden: RankLog | None) -> bool:
    first = next(iter(log.batches), None)
    due = next((one for one in golden.batches if first is not None and one.batch == first.batch), None) if golden else None
    return first is not None and due is not None and hex_text(first.loss) != hex_text(due.loss)


def is_probed(run: Run) -> bool:
    """Whether the job is a foreign one that is watched from inside."""
    return isinstance(run.plan.scenario.workload, Command) and run.plan.scenario.workload.probe


def _is_nothing(run: Run, baseline: Baseline, finding: Finding) -> bool:
    """Whether a foreign job has lost nothing by it: it has no average of its weights, or draws nothing from that generator."""
    if not is_probed(run):
        return False
    if finding.component == "scaler" and run.plan.scenario.compare_with == "control":
        return True
    if finding.component == "ema":
        return ABSENT in (finding.expected, finding.found)
    return finding.component in _undrawn(baseline.ranks.get(finding.rank or 0))


def _undrawn(log: RankLog | None) -> set[str]:
    """The generators that stand where they stood through the whole of the uninterrupted run."""
    records = [record["digests"] for record in log.of("state")] if log is not None else []
    names = {name for digests in records for name in digests if name.startswith("rng")}
    return {name for name in names if len({digests.get(name) for digests in records}) == 1}


def _is_felt(run: Run, baseline: Baseline, findings: list[Finding]) -> bool:
    """Whether anything but generators differs, or the losses or data do.

    A foreign job draws from generators for reasons of its own, such as the seeds of workers that draw nothing: that they stand
    elsewhere after a restart is the cause of a difference, or nothing.
    """
    others = any(finding.outcome != "FAIL" or not finding.component.startswith("rng") for finding in findings)
    return others or bool(loss(run, baseline) or data(run, baseline))


def _repeats(run: Run, baseline: Baseline) -> bool:
    """Whether the uninterrupted run is the very job, so that its digests are what this one's must be."""
    return not baseline.unstable and run.plan.scenario.compare_with in ("same", "unsaved", "control")


def same_bits(run: Run, baseline: Baseline, attempt: AttemptRun, rank: int) -> bool:
    """Whether this rank holds what the baseline's holds: all work up to here was done on the baseline's number of ranks."""
    worked = [a for a in run.attempts[: attempt.index] if any(log.batches for log in a.ranks.values())]
    same = all(a.world_size == baseline.world_size for a in (*worked, attempt))
    return same and rank in baseline.ranks and _repeats(run, baseline)


def _first_drift(drifts: list[tuple[int, Finding] | None]) -> list[Finding]:
    """Of what went wrong on several ranks after their loads: what came first, and of that what does not follow from gradients."""
    found = [drift for drift in drifts if drift is not None]
    if not found:
        return []
    batch, (_, name) = min((batch, (_follows(one.component), one.component)) for batch, one in found)
    return [one for place, one in found if (place, one.component) == (batch, name)]


def _drifted(run: Run, baseline: Baseline, attempt: AttemptRun, resume: Resume) -> tuple[int, Finding] | None:
    """The first moment after a good load at which a component is not what it is in the uninterrupted run, and its batch.

    What draws or counts by itself is named before what follows from gradients: a wrong generator makes other weights within
    a batch, never the other way round.
    """
    if same_bits(run, baseline, attempt, resume.rank):
        golden_log, read = baseline.ranks[resume.rank], _digests
    elif _repeats(run, baseline) and 0 in baseline.ranks and same_work(run, baseline, attempt):
        golden_log, read = baseline.ranks[0], without_rounding
    else:
        return None
    golden_records = _moments(golden_log, 0)
    expected = {place: read(record) for place, record in golden_records.items()}
    undrawn = _undrawn(golden_log) if is_probed(run) else set()
    for (batch, moment), record in _moments(attempt.ranks[resume.rank], resume.batch).items():
        golden, digests = expected.get((batch, moment)), read(record)
        if not golden or not digests:
            continue
        names = (golden.keys() | digests.keys()) - baseline.noise
        if run.plan.scenario.compare_with == "control":
            names -= {"scaler"}  # the same numbers may be had on another scale
        if is_probed(run):
            names -= undrawn | ({"ema"} - (golden.keys() & digests.keys()))
        wrong = [name for name in names if golden.get(name) != digests.get(name)]
        wrong = [name for name in wrong if not _is_renamed(golden_records[batch, moment], record, name)]
        if wrong:
            name = min(wrong, key=lambda one: (_follows(one), one))
            others = ", ".join(sorted(set(wrong) - {name}))
            where = _MOMENTS[moment].format(batch)
            text = f"{name} of rank {resume.rank} {where} in attempt {attempt.index} is not that of the uninterrupted run"
            text += ", although the load was right" if attempt.index else ""
            text += f" (nor are {others})" if others else ""
            place = {"component": name, "rank": resume.rank, "attempt": attempt.index, "file": resume.name or None}
            found = digests.get(name) or ABSENT
            lost = fail("state-lost", _ORACLE, text, expected=golden.get(name) or ABSENT, found=found, late=True, **place)
            return batch, lost
    return None


def _digests(record: Record) -> dict[str, str]:
    found: dict[str, str] = record["digests"]
    return found


def _moments(log: RankLog, start: int) -> dict[tuple[int, str], Record]:
    """(batches done, `save`, `next` or `end`) → `state` record, in order; of a batch that was saved twice the last."""
    found: dict[tuple[int, str], Record] = {}
    batch = start
    for record in log.records:
        if record["event"] == "batch" and isinstance(record.get("batch"), int):
            batch = record["batch"]
        elif record["event"] == "state" and record.get("moment") in _MOMENTS:
            found[batch, str(record["moment"])] = record
    return found


def _follows(component: str) -> int:
    return _CONSEQUENCES.index(component) + 1 if component in _CONSEQUENCES else 0


def _order(component: str) -> int:
    return COMPONENTS.index(component.partition(".")[0])


def _one_load(run: Run, baseline: Baseline, history: History, attempt: AttemptRun, resume: Resume) -> list[Finding]:
    index = _writer(history, attempt, resume)
    writer = None if index is None else _matching(history.saves[index].get(resume.rank, []), resume)
    moved = index is not None and run.attempts[index].world_size != attempt.world_size
    golden = None
    loads = attempt.ranks[resume.rank].of("state", moment="load")
    if same_bits(run, baseline, attempt, resume.rank):
        log = baseline.ranks[resume.rank]
        middle = _in_the_middle(log, resume, loads[0].get("micro")) if loads else None
        golden = middle or _at_batch(saves(log, 0), resume) or _before_next(log, resume)
    if not loads:
        return _unlogged(attempt, resume, writer or golden)
    if is_probed(run) and attempt.world_size != baseline.world_size:
        return _moved_probed(run, baseline, attempt, resume)
    if moved:
        return _moved_load(run, history, attempt, resume, index or 0)
    findings: list[Finding] = []
    for before, where in ((writer, BEFORE_SAVE), (golden, IN_BASELINE)):
        if before is not None:
            seen = {finding.component for finding in findings}
            found = _compare(attempt, resume, before.digests, loads[0]["digests"], where)
            found = [finding for finding in found if finding.component not in seen]
            findings += [finding for finding in found if not _is_renamed(before.state, loads[0], finding.component)]
    return findings


def _moved_load(run: Run, history: History, attempt: AttemptRun, resume: Resume, index: int) -> list[Finding]:
    """Over a change of the number of ranks: the whole as this rank sees it, and as it was saved."""
    found = {rank: _matching(written, resume) for rank, written in history.saves[index].items()}
    saved = views({rank: save.state for rank, save in found.items() if save is not None}, run.attempts[index].world_size)
    loads = {rank: records[0] for rank, log in attempt.ranks.items() if (records := log.of("state", moment="load"))}
    loaded = views(loads, attempt.world_size)
    if not saved or resume.rank not in loaded:
        return []
    return _compare(attempt, resume, saved[0], loaded[resume.rank], f"{BEFORE_SAVE} on {len(saved)} ranks")


def _moved_probed(run: Run, baseline: Baseline, attempt: AttemptRun, resume: Resume) -> list[Finding]:
    """The same of a foreign job: as the uninterrupted run was at that batch, if all work until then was done on its ranks."""
    worked = [past for past in run.attempts[: attempt.index] if any(log.batches for log in past.ranks.values())]
    if not _repeats(run, baseline) or any(past.world_size != baseline.world_size for past in worked):
        return []
    before = {rank: save.state for rank, log in baseline.ranks.items() if (save := _before_next(log, resume)) is not None}
    loads = {rank: records[0] for rank, log in attempt.ranks.items() if (records := log.of("state", moment="load"))}
    saved, loaded = views(before, baseline.world_size), views(loads, attempt.world_size)
    if not saved or resume.rank not in loaded:
        return []
    # A batch that is more work may be done at another rate.
    uncertain = _OF_ONE_RANK if same_work(run, baseline, attempt) else (*_OF_ONE_RANK, "scheduler")
    where = f"{IN_BASELINE} on {len(saved)} ranks"
    # What ranks do not agree on is split in a way of the trainer's own: then what they have by name, all together, is compared.
    split = {name for said in (saved, loaded) for one in said.values() for name in one if one[name] != said[0].get(name)}
    found = _compare(attempt, resume, saved[0], loaded[resume.rank], where)
    found = [one for one in found if one.component not in (*uncertain, *split)]
    for name in sorted(split - {*uncertain}):
        found += _split(attempt, resume, before, loads, name, where)
    return found


def _split(
    attempt: AttemptRun, resume: Resume, before: dict[int, Record], loads: dict[int, Record], component: str, where: str
) -> list[Finding]:
    """Of a component whose parts are each on one rank, or the same on several: whether all of them are there and the same."""
    saved, loaded = (_all_parts(records, component) for records in (before, loads))
    wrong = [name for name in saved if loaded.get(name, ABSENT if loaded else saved[name]) != saved[name]]
    if not wrong or not all(record.get("parts", {}).get(component) for record in before.values()):
        return []
    name = wrong[0]
    lost = _lost(attempt, resume, component, saved[name], loaded.get(name), where)
    return [replace(lost, message=f"{lost.message}: {len(wrong)} of {len(saved)} parts, such as {name}")]


def _all_parts(records: dict[int, Record], component: str) -> dict[str, str]:
    """Name → digest, of the names that no two ranks say differently of."""
    found: dict[str, set[str]] = {}
    for record in records.values():
        for name, text in (record.get("parts", {}).get(component) or {}).items():
            found.setdefault(name, set()).add(text)
    return {name: texts.pop() for name, texts in found.items() if len(texts) == 1}


def _is_renamed(before: Record, after: Record, component: str) -> bool:
    """Whether all parts of a component are there, bit by bit, under other names, as another version may call them."""
    one, other = ((record.get("parts") or {}).get(component) or {} for record in (before, after))
    return bool(one) and one.keys() != other.keys() and sorted(one.values()) == sorted(other.values())


def _compare(attempt: AttemptRun, resume: Resume, before: dict[str, str], after: dict[str, str], where: str) -> list[Finding]:
    return [
        _lost(attempt, resume, component, before.get(component), after.get(component), where)
        for component in sorted(before.keys() | after.keys())
        if before.get(component) != after.get(component)
    ]


def _writer(history: History, attempt: AttemptRun, resume: Resume) -> int | None:
    """The attempt that wrote the checkpoint; None where it is unknown."""
    # What was committed counts before what was only begun: a save that was cut short is not what was loaded.
    commit = next((commit for commit in reversed(history.standing(attempt.index)) if resume.name in commit.tops), None)
    indices = [commit.attempt] if commit is not None else list(range(attempt.index - 1, -1, -1))
    for index in indices:
        if any(_matching(found, resume) for found in history.saves[index].values()):
            return index
    return None


def _matching(found: list[Save], resume: Resume) -> Save | None:
    return next((s for s in reversed(found) if resume.name in s.tops and s.step == resume.step and s.digests), None)


def _at_batch(found: list[Save], resume: Resume) -> Save | None:
    # Not by name: the uninterrupted run may save in another format, which must not change what is saved.
    return next((s for s in reversed(found) if (s.batch, s.step) == (resume.batch, resume.step) and s.digests), None)


def _in_the_middle(log: RankLog, resume: Resume, micro: object) -> Save | None:
    """As it stood when a batch was saved in its middle, after so many of its micro-batches."""
    batch = 0
    for record in log.records if micro else ():
        if record["event"] == "batch" and isinstance(record.get("batch"), int):
            batch = record["batch"]
        elif (
            record["event"] == "state"
            and record.get("micro") == micro
            and record.get("moment") == "saving"
            and batch == resume.batch
        ):
            return Save(batch, resume.step, resume.name, record["digests"], record)
    return None


def _before_next(log: RankLog, resume: Resume) -> Save | None:
    """Of a trainer that is watched from inside: as it stood before the next batch, which is where a resumed one begins."""
    found = _moments(log, 0)
    record = found.get((resume.batch, "next")) or found.get((resume.batch, "end"))
    return None if record is None else Save(resume.batch, resume.step, resume.name, record["digests"], record)


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


def is_digest(value: str) -> bool:
    """Whether it is no value that people can read."""
    return value == ABSENT or re.fullmatch(r"[0-9a-f]{16,}", value) is not None


def short(digest: str) -> str:
    """The first digits of a digest, enough to tell two apart."""
    return digest if digest == ABSENT else f"{digest[:4]}…"
