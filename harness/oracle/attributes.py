"""What a job holds in variables and plain attributes is, after a resume, what it was: averages, generators, counters, patience.

Holds when, of a job that is watched from inside, on the uninterrupted run's number of ranks: every set of tensors that is shaped
like the parameters and moves with every batch, as an average of the weights does, is after the load what it is in the
uninterrupted run at the same batch, or soon becomes it. Of other copies of the weights, of generators and of plain values the
same is asked only where the losses, the data or the number of batches tell that something is missing: a running mean for people
to read may well begin anew, and a buffer for copies be empty, and then it is the cause of nothing.

Does not verify: names that one of the two runs does not have at that moment; values that two undisturbed runs do not share; what
no variable or attribute leads to; other trainers than those watched from inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from harness.oracle.completion import completion
from harness.oracle.data import data
from harness.oracle.finding import Finding, fail
from harness.oracle.history import History, Resume
from harness.oracle.loss import loss
from harness.oracle.state import is_probed, same_bits
from harness.store import AttemptRun, Baseline, RankLog, Run

_ORACLE = "attributes"
# Train or eval mode, and which parameters are trained.
MODES = "model.modes"
# Field of a `state` record → component.
COMPONENTS = {"averages": "ema", "generators": "rng.generators", "modes": MODES, "attributes": "counters"}
_NAMED = 3
_MOVES = 0.5
AVERAGE, OF_OPTIMIZER = "the average ", "the tensors "
# Of an optimizer that keeps more than its state, the probe names it so.
_OPTIMIZER = "optimizer."
# What a list or a mapping without entries is logged as.
EMPTY = "=[]"


@dataclass(frozen=True)
class Held:
    """What was held at one moment.

    Attributes:
        batch: batches done.
        moment: `load`, `next` or `end`; `micro` of a load in the middle of a batch.
        values: field of the record → name → value or digest; `rng` has the global generators.
    """

    batch: int
    moment: str
    values: dict[str, dict[str, str]]


def attributes(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares what is held after each load with the uninterrupted run."""
    if not is_probed(run):
        return []
    history = History(run, baseline)
    findings = []
    for attempt in run.attempts[1:]:
        for resume in history.resumes[attempt.index]:
            if resume.name and same_bits(run, baseline, attempt, resume.rank):
                findings += _of_rank(attempt, baseline, resume)
    kept = [one for one in findings if one.message.startswith((AVERAGE, OF_OPTIMIZER))]
    # Costly, and only asked where there is something to explain.
    return findings if len(kept) < len(findings) and _is_felt(run, baseline) else kept


def _is_felt(run: Run, baseline: Baseline) -> bool:
    return bool(loss(run, baseline) or data(run, baseline) or completion(run, baseline)) or _saves_elsewhere(run, baseline)


def _saves_elsewhere(run: Run, baseline: Baseline) -> bool:
    """Whether a restart saves after other batches than the uninterrupted run, though nobody has asked it to end."""
    planned = {place for log in baseline.ranks.values() for place in _saved_after(log)}
    asked = {a.index for a in run.attempts for r in a.of("fired") if "sigterm" in str(r.get("fault"))}
    later = [attempt for attempt in run.attempts[1:] if attempt.index not in asked]
    return any(place not in planned for attempt in later for log in attempt.ranks.values() for place in _saved_after(log))


def _saved_after(log: RankLog) -> set[int]:
    """Batches done when a save began; not of one that another thread begins, or that only says which checkpoint counts."""
    begun = log.of("save", moment="begin")
    return {r["batch"] for r in begun if isinstance(r.get("batch"), int) and not r.get("background") and not r.get("pointer")}


def _of_rank(attempt: AttemptRun, baseline: Baseline, resume: Resume) -> list[Finding]:
    log, looks = baseline.ranks[resume.rank], list(held(attempt.ranks[resume.rank], resume.batch))
    places = {place_of(one) for one in looks}
    expected = {(one.batch, one.moment): one.values for one in held(log, only=places)}
    golden: list[Held] = []
    findings: list[Finding] = []
    for field, component in COMPONENTS.items():
        seen = []
        for one in looks:
            before = expected.get(place_of(one), {}).get(field, {})
            now = {name: value for name, value in one.values.get(field, {}).items() if f"{field}.{name}" not in baseline.noise}
            seen.append((one, {name: (before[name], value) for name, value in now.items() if name in before}))
        if all(expects == found for _, both in seen for expects, found in both.values()):
            continue  # as in almost every run; what follows takes a while
        golden = golden or list(held(log))
        changing, moves = num_values(golden, field), _moving(golden) if field == "averages" else set()
        for one, both in seen:
            wrong = {
                name: values
                for name, values in both.items()
                if values[0] != values[1]
                and not (field == "attributes" and values[1] == EMPTY)
                and (name in changing or _counts(field, values[1]))
                and not (field == "averages" and recovers(name, [later for moment, later in seen if moment.batch > one.batch]))
            }
            if wrong:
                # What moves with every batch is an average; then what changes least often: a loss changes always.
                names = sorted(wrong, key=lambda name: (name not in moves, changing.get(name, 0), name))
                average = names[0] in moves
                findings.append(_lost(attempt, resume, one, component, {name: wrong[name] for name in names}, average=average))
                break
    return findings


def recovers(name: str, later: list[dict[str, tuple[str, str]]]) -> bool:
    """Whether it is as in the uninterrupted run again at a later moment, as a copy is that is made anew."""
    return any(both[name][0] == both[name][1] for both in later if name in both)


def _moving(golden: list[Held]) -> set[str]:
    """The averages that change with most batches; a copy that is made now and then changes with few."""
    steps: dict[str, list[bool]] = {}
    for one, other in itertools.pairwise(golden):
        before, after = (held.values.get("averages", {}) for held in (one, other))
        for name in before.keys() & after.keys():
            steps.setdefault(name, []).append(before[name] != after[name])
    return {name for name, changed in steps.items() if sum(changed) > _MOVES * len(changed)}


def _counts(field: str, value: str) -> bool:
    """Whether it matters though it stands still in the uninterrupted run: a plain value is a setting then, such as a start."""
    return field in ("generators", "modes") or (field == "attributes" and not value.startswith("="))


def num_values(golden: list[Held], field: str) -> dict[str, int]:
    """Name → number of values it had in the uninterrupted run, of those that had several."""
    found: dict[str, set[str]] = {}
    last: dict[str, str] = {}
    for one in golden:
        now = one.values.get(field, {})
        for name, value in now.items():
            if last.get(name) != value:
                found.setdefault(name, set()).add(value)
        last = now
    return {name: len(values) for name, values in found.items() if len(values) > 1}


def place_of(one: Held) -> tuple[int, str]:
    """Where the uninterrupted run was looked at in its stead; a resumed one begins right before the next batch."""
    return one.batch, "next" if one.moment == "load" else one.moment


def held(log: RankLog, start: int = 0, only: set[tuple[int, str]] | None = None) -> Iterator[Held]:
    """What a rank said that it holds, moment after moment. Plain attributes are logged where they have changed.

    Args:
        log: what the rank said.
        start: batches done when its attempt began.
        only: batches done and moments that are asked for; None for all.
    """
    batch = start
    plain: dict[str, str] = {}
    for record in log.records:
        if record["event"] == "batch" and isinstance(record.get("batch"), int):
            batch = record["batch"]
        elif record["event"] == "state" and record.get("moment") in ("load", "next", "end") and "attributes" in record:
            for name, value in record["attributes"].items():
                plain.pop(name, None)
                if isinstance(value, str):
                    plain[name] = value
            if only is not None and (batch, record["moment"]) not in only:
                continue
            others = {field: dict(record.get(field) or {}) for field in COMPONENTS if field != "attributes"}
            # One that is made anew has no tensors yet.
            others["averages"].update((name, value) for name, value in plain.items() if value == EMPTY)
            others["rng"] = {name: text for name, text in record["digests"].items() if name.startswith("rng")}
            # In the middle of a batch is no moment that the uninterrupted run has been looked at.
            yield Held(batch, "micro" if record.get("micro") else record["moment"], {**others, "attributes": dict(plain)})


def _lost(
    attempt: AttemptRun, resume: Resume, moment: Held, component: str, values: dict[str, tuple[str, str]], *, average: bool
) -> Finding:
    names = list(values)
    told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    of_optimizer = average and names[0].startswith(_OPTIMIZER)
    told = (OF_OPTIMIZER if of_optimizer else AVERAGE) + told if average else told
    component = "optimizer" if of_optimizer else component
    where = f"after the load of {resume.name}" if moment.moment == "load" else f"after batch {moment.batch}"
    text = f"{told} of rank {resume.rank} {where} in attempt {attempt.index} is not what it is in the uninterrupted run"
    place = {"component": component, "step": resume.step, "rank": resume.rank, "file": resume.name, "attempt": attempt.index}
    before, after = (text_of(value) for value in values[names[0]])
    return fail("state-lost", _ORACLE, text, expected=before, found=after, late=moment.moment != "load", **place)


def names_in(message: str) -> list[str]:
    """The names of variables that a finding tells of, the likeliest cause first."""
    return message.removeprefix(AVERAGE).removeprefix(OF_OPTIMIZER).partition(" of rank ")[0].partition(" and ")[0].split(", ")


def text_of(value: str) -> str:
    """A logged value as people write it; a digest as it is."""
    if not value.startswith("="):
        return value
    text = value[1:]
    try:
        return f"{float.fromhex(text):g}" if "0x" in text else text
    except ValueError:
        return text
