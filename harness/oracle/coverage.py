"""Over a change of the number of ranks, every sample of an epoch is still taken once.

Holds when, where a batch is another amount of work after a restart than in the uninterrupted run, so that batches cannot be
compared one by one: the samples of all attempts, re-done work aside, pass through the data as the uninterrupted run does. That is
read off the uninterrupted run: so many samples after which each has been taken once and the first comes again are an epoch.

Does not verify: the order within an epoch; epochs that do not take every sample once, as with replacement or a dropped rest; the
rest of an epoch that was begun when the job ended.
"""

from __future__ import annotations

from collections import Counter

from harness.oracle.finding import Finding, fail
from harness.oracle.history import History, same_work
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, RankLog, Run

_ORACLE = "coverage"


def coverage(run: Run, baseline: Baseline) -> list[Finding]:
    """Counts the samples of each epoch over all attempts."""
    moved = [a for a in run.attempts if isinstance(run.plan.scenario.workload, Command) and not same_work(run, baseline, a)]
    if not moved or baseline.unstable:
        return []
    length = _epoch(_rows(baseline.ranks))
    if not length:
        return []
    taken = _taken(run)
    for number in range(len(taken) // length):
        counts = Counter(row for row, *_ in taken[number * length : (number + 1) * length])
        several = [row for row, times in counts.items() if times > 1]
        if not several:
            continue
        first = next(place for place in taken[number * length :] if place[0] in several and place[1] >= moved[0].index)
        text = (
            f"epoch {number} of {length} samples: {len(several)} are taken more than once and {length - len(counts)} never, over "
            f"{len(moved)} attempt{'s' * (len(moved) > 1)} on another number of ranks"
        )
        place = {"component": "data", "step": first[2], "attempt": first[1]}
        return [fail("data-repeated", _ORACLE, text, expected=f"{length} samples once", found=f"{len(counts)} samples", **place)]
    return []


def _rows(ranks: dict[int, RankLog]) -> list[int]:
    """All samples in the order of batches, and of ranks within one."""
    found = sorted((batch.batch, rank, batch.samples) for rank, log in ranks.items() for batch in log.batches)
    return [sample for _, _, samples in found for sample in samples]


def _epoch(rows: list[int]) -> int:
    """Samples of an epoch: each is taken once, and then each again, as far as the run goes; 0 where it is not so."""
    length = _until_one_repeats(rows)
    first = set(rows[:length])
    epochs = [rows[start : start + length] for start in range(0, len(rows), length)] if length else []
    return length if all(len(set(some)) == len(some) and set(some) <= first for some in epochs) else 0


def _until_one_repeats(rows: list[int]) -> int:
    seen: set[int] = set()
    for place, row in enumerate(rows):
        if row in seen:
            return place
        seen.add(row)
    return 0


def _taken(run: Run) -> list[tuple[int, int, int]]:
    """(sample, attempt, step) of all that counts: what an attempt did up to where the next one went on."""
    history = History(run)
    found: list[tuple[int, int, int]] = []
    for attempt in run.attempts:
        later = [r.batch for other in run.attempts[attempt.index + 1 :] if (r := history.resume_of(other.index)) is not None]
        until = min(later, default=None)
        found += [
            (sample, attempt.index, step)
            for batch, step, samples in _batches(attempt)
            if until is None or batch <= until
            for sample in samples
        ]
    return found


def _batches(attempt: AttemptRun) -> list[tuple[int, int, tuple[int, ...]]]:
    found = sorted((one.batch, rank, one.step, one.samples) for rank, log in attempt.ranks.items() for one in log.batches)
    return [(batch, step, tuple(samples)) for batch, _, step, samples in found]
