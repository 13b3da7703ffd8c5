"""Every batch holds the samples that it holds in the uninterrupted run: none is consumed twice, none is left out.

Holds when, for every batch that all ranks of an attempt have done, the samples of all ranks together are those of the same
batch of the uninterrupted run, on whatever number of ranks. The first batch of an attempt that differs is named: as
`data-repeated` if an earlier batch of the uninterrupted run holds just these samples, as `data-skipped` if a later one
does, and as `diverged` if none does, which is another order. Of several, the nearest counts.

On the uninterrupted run's number of ranks, each rank of a foreign job takes its own share of a batch too.

Does not verify: the order within a share (`loss` feels it); that the samples are what their indices say; a trainer that logs no
samples; a batch that is missing or done twice by its number (`loss`).
"""

from __future__ import annotations

from harness.oracle.finding import Finding, fail, numbers_text
from harness.oracle.history import same_work
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, RankLog, Run

_ORACLE = "data"
_SHOWN = 12

Samples = tuple[int, ...]


def data(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares the samples of each batch of each attempt with the uninterrupted run's."""
    if baseline.unstable:
        return []
    golden = _batches(baseline.ranks, baseline.world_size)
    same = [attempt for attempt in run.attempts if same_work(run, baseline, attempt)]
    foreign = isinstance(run.plan.scenario.workload, Command)
    findings = []
    for attempt in same:
        findings += _first_difference(attempt, golden) or (_other_shares(attempt, baseline) if foreign else [])
    return findings


def _batches(ranks: dict[int, RankLog], world_size: int) -> dict[int, Samples]:
    """Batch → the samples of all ranks in ascending order; only batches that every rank has done and has named samples of."""
    held: dict[int, list[Samples]] = {}
    for log in ranks.values():
        for number, samples in {batch.batch: batch.samples for batch in log.batches}.items():
            held.setdefault(number, []).append(samples)
    whole = {number: parts for number, parts in sorted(held.items()) if len(parts) == world_size and all(parts)}
    return {number: tuple(sorted(index for part in parts for index in part)) for number, parts in whole.items()}


def _first_difference(attempt: AttemptRun, golden: dict[int, Samples]) -> list[Finding]:
    found = _batches(attempt.ranks, attempt.world_size)
    number = next((n for n, samples in found.items() if n in golden and samples != golden[n]), None)
    if number is None:
        return []
    twins = [other for other, samples in golden.items() if samples == found[number]]
    if not twins:
        kind, what = "diverged", "samples that no batch of the uninterrupted run holds together"
    else:
        twin = min(twins, key=lambda other: (abs(other - number), other))
        kind, what = ("data-repeated" if twin < number else "data-skipped"), f"the samples of batch {twin}"
    steps = [batch.step for log in attempt.ranks.values() for batch in log.batches if batch.batch == number]
    text = f"batch {number} of attempt {attempt.index} took {what}"
    where = {"component": "data", "step": steps[0], "attempt": attempt.index}
    return [fail(kind, _ORACLE, text, expected=_text(golden[number]), found=_text(found[number]), **where)]


def _other_shares(attempt: AttemptRun, baseline: Baseline) -> list[Finding]:
    """The first batch of which a rank takes what is another rank's, where all of them together take the right samples."""
    if attempt.world_size != baseline.world_size or attempt.world_size == 1:
        return []
    for rank, log in attempt.ranks.items():
        planned = {batch.batch: batch.samples for batch in baseline.ranks[rank].batches} if rank in baseline.ranks else {}
        for batch in log.batches:
            expected = planned.get(batch.batch, ())
            if expected and batch.samples and sorted(expected) != sorted(batch.samples):
                text = f"rank {rank} took samples of other ranks in batch {batch.batch} of attempt {attempt.index}"
                where = {"component": "data", "step": batch.step, "rank": rank, "attempt": attempt.index}
                shares = (_text(tuple(sorted(one))) for one in (expected, batch.samples))
                return [fail("diverged", _ORACLE, text, **where, **dict(zip(("expected", "found"), shares, strict=True)))]
    return []


def _text(samples: Samples) -> str:
    more = f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
    return f"samples {numbers_text(list(samples[:_SHOWN]))}{more}"
