"""A job that cannot go on says so and touches nothing.

Holds, for a case that expects `refuses`, when in the last attempt no rank resumed or trained; every rank ended with an
exit code other than 0 (or was ended by the harness after its peer had); at least one rank logged the refusal (but for a command
that is watched from inside, which logs none by itself) and wrote a text to stderr that names a file (one of those that were
damaged before this attempt, if any were) or the two world sizes, what was expected and what was found; and the checkpoint
directory is at the end what it was at the beginning, byte for byte.

Does not verify: that the reason given is the true one; empty directories (only files are recorded). Where a planned fault
did not fire there was nothing to refuse, and it says nothing: `fired` does.
"""

from __future__ import annotations

from pathlib import PurePath

from harness.oracle.completion import last_words
from harness.oracle.finding import Finding, fail, inconclusive
from harness.oracle.fired import unfired
from harness.oracle.history import HANGS, History, exit_of, exit_text, finished, foreign_deaths, succeeded
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, Run

_ORACLE = "refusal"


def refusal(run: Run, baseline: Baseline) -> list[Finding]:  # noqa: ARG001  every oracle has this signature
    """Looks at the end of the last attempt."""
    if run.plan.scenario.expect != "refuses" or not run.attempts or unfired(run):
        return []
    last = run.attempts[-1]
    if foreign_deaths(last) or not last.of("ended"):
        return []
    went_on = _went_on(History(run), last)
    if went_on:
        return [went_on]
    watched = isinstance(run.plan.scenario.workload, Command) and run.plan.scenario.workload.probe
    return _ends(last) + _text(last, watched=watched) + _files(last)


def _went_on(history: History, last: AttemptRun) -> Finding | None:
    """What the trainer did instead of refusing."""
    resumes = history.resumes[last.index]
    trained = any(log.batches for log in last.ranks.values())
    if not resumes and not trained and not finished(last):
        return None
    where = {"component": "checkpoint-files", "attempt": last.index, "expected": "a refusal"}
    if not resumes:
        what = "trained without having said from where" if trained else "ended with exit code 0"
        return fail("bad-refusal", _ORACLE, f"attempt {last.index} {what}; expected a refusal", found=what, **where)
    first = resumes[0]
    where |= {"rank": first.rank, "step": first.step}
    if not first.name or first.batch == 0:
        text = f"attempt {last.index} started from scratch; expected a refusal"
        return fail("restarted-from-scratch", _ORACLE, text, found="training from scratch", **where)
    hit = history.damaged(last.index).get(first.name)
    text = f"attempt {last.index} resumed from {first.name}; expected a refusal"
    kind, file = ("corrupt-accepted", str(hit[0]["path"])) if hit else ("bad-refusal", first.name)
    return fail(kind, _ORACLE, text, file=file, found=f"resumed from {first.name}", **where)


def _ends(last: AttemptRun) -> list[Finding]:
    findings = []
    for rank in range(last.world_size):
        exit_record = exit_of(last, rank)
        kind = None if exit_record is None else exit_record.get("kind")
        if kind in HANGS or not (exit_record is None or kind == "crashed" or succeeded(exit_record)):
            continue  # of a hang, liveness speaks
        text = f"rank {rank} ended with {exit_text(exit_record)} in attempt {last.index}; expected an exit code other than 0"
        findings.append(
            fail(
                "bad-refusal",
                _ORACLE,
                text,
                component="process",
                rank=rank,
                attempt=last.index,
                expected="an exit code other than 0",
                found=exit_text(exit_record),
            )
        )
    return findings


def _text(last: AttemptRun, *, watched: bool) -> list[Finding]:
    """Whether one rank at least said what, where, expected and found. Who is watched from inside has only stderr to say so."""
    refused = [0] if watched else [rank for rank, log in last.ranks.items() if log.of("refuse")]
    where = {"component": "checkpoint-files", "attempt": last.index}
    if not refused:
        text = f"no rank of attempt {last.index} logged a refusal"
        return [fail("bad-refusal", _ORACLE, text, expected="a `refuse` record", found="none", **where)]
    names = _names(last)
    missing = {rank: _missing(last.stderr(rank), names) for rank in {*last.ranks, *refused}}
    if any(not lacks for lacks in missing.values()):
        return []
    rank = min(refused, key=lambda number: len(missing[number]))
    text = f"the refusal of rank {rank} does not say {' and '.join(missing[rank])}: {last_words(last, rank)}"
    expected = "a file or the two world_size, expected, found"
    return [fail("bad-refusal", _ORACLE, text, rank=rank, expected=expected, found=last_words(last, rank), **where)]


def _names(last: AttemptRun) -> set[str]:
    """What counts as naming a file: its path or its own name, and where nothing was damaged its checkpoint's name.

    Where the harness has damaged files, one of these must be named: that of a healthy one leads to the wrong place.
    """
    hit = [str(record["path"]) for record in last.of("damaged") if not record.get("unchanged")]
    if hit:
        return {name for path in hit for name in (path, PurePath(path).name)}
    return {name for path in last.files("begin") or {} for name in (path, PurePath(path).name, PurePath(path).parts[0])}


def _missing(text: str, names: set[str]) -> list[str]:
    lacks = [word for word in ("expected", "found") if word not in text]
    if "world_size" not in text and not any(name in text for name in names):
        lacks.append("which file")
    return lacks


def _files(last: AttemptRun) -> list[Finding]:
    begin, end = last.files("begin"), last.files("end")
    if begin is None or end is None:
        text = f"the files of attempt {last.index} were not recorded"
        return [inconclusive("not-comparable", _ORACLE, text, attempt=last.index)]
    changed = sorted(path for path in begin.keys() | end.keys() if begin.get(path) != end.get(path))
    if not changed:
        return []
    path = changed[0]
    found = "gone" if path not in end else "new" if path not in begin else "changed"
    text = f"the refusal changed the checkpoint directory: {path} is {found} ({len(changed)} of {len(begin)} files)"
    where = {"component": "checkpoint-files", "file": path, "attempt": last.index}
    return [fail("bad-refusal", _ORACLE, text, expected="no change", found=f"{path} {found}", **where)]
