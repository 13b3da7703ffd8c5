"""The loss curve is the uninterrupted one, batch by batch, in every attempt.

Holds when, for every batch that any attempt has done: the global loss differs from the baseline's by no more than the
tolerance; on the baseline's world size the rank's own loss too; tag and step are equal; and the set of batches is the
baseline's, with no hole and none done twice within an attempt. A NaN or an infinity equals nothing; where the baseline's own loss
is none, nothing can be held against a run that has none there either, and that is INCONCLUSIVE. A skipped batch that the baseline
skipped for the same reason is equal: its loss is not a number by nature.

Does not verify: anything that the loss does not feel within the run, such as averages of weights, or moments at a small
learning rate (`state` does); which samples were read (`data` does); a silent restart
from scratch, whose curve is identical (`progress` does); a tail that a job that did not finish is missing (`completion`).
With a baseline that differs from itself it says nothing: `control` does. Nor does it of a foreign job on another number of ranks
whose batches then hold another number of samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from harness.oracle.finding import Finding, fail, hex_text, inconclusive, numbers_text
from harness.oracle.history import History, finished, same_work
from harness.oracle.noise import Allowed, allowed, unusable
from harness.store import AttemptRun, Baseline, Batch, Run

_ORACLE = "loss"


@dataclass(frozen=True)
class _Pair:
    """A batch of a run beside the same batch of the baseline; losses of the rank only where they are comparable."""

    rank: int
    expected: Batch
    found: Batch
    own: bool

    @property
    def skipped_alike(self) -> bool:
        return self.expected.tag == self.found.tag == "SKIP" and self.expected.reason == self.found.reason

    @property
    def differences(self) -> list[tuple[float, float, float]]:
        """|difference|, uninterrupted and resumed of each loss that is compared; the rank's own first."""
        if self.skipped_alike:
            return []
        pairs = [(self.expected.global_loss, self.found.global_loss)]
        if self.own:
            pairs.insert(0, (self.expected.loss, self.found.loss))
        # A rank that knows only its own loss has no global one of a batch that another rank did not end.
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        return [(abs(found - expected), expected, found) for expected, found in known]

    @property
    def is_no_number(self) -> bool:
        """Whether some loss is no finite number here, and in the uninterrupted run neither."""
        if math.isfinite(self.expected.loss) and math.isfinite(self.expected.global_loss or 0.0):
            return False
        return any(not math.isfinite(one) and not math.isfinite(other) for _, one, other in self.differences)

    def beyond(self, tolerance: float) -> list[tuple[float, float, float]]:
        # Negated, so that NaN is beyond every tolerance.
        several = [difference for difference in self.differences if not difference[0] <= tolerance]
        return [one for one in several if math.isfinite(one[1]) or math.isfinite(one[2])]

    @property
    def other_course(self) -> bool:
        return (self.expected.tag, self.expected.step) != (self.found.tag, self.found.step) or (
            self.expected.tag == "SKIP" and self.expected.reason != self.found.reason
        )

    def differs(self, tolerance: float) -> bool:
        return self.other_course or bool(self.beyond(tolerance))


def loss(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares every batch of every attempt with the uninterrupted run."""
    if baseline.unstable:
        return []
    comparable = [attempt for attempt in run.attempts if same_work(run, baseline, attempt)]
    findings = _batch_sets(run, baseline) if comparable == run.attempts else []
    for attempt in comparable:
        pairs = list(_pairs(attempt, baseline))
        findings += _first_difference(attempt, pairs, allowed(run, baseline, attempt)) + _no_numbers(attempt, pairs)
    return findings + [inconclusive("not-comparable", _ORACLE, f"tolerance auto: {why}") for why in unusable(run, baseline)]


def max_difference(run: Run, baseline: Baseline) -> float | None:
    """The largest |resumed − uninterrupted| of any compared loss; exactly 0 when all are equal to the last bit.

    Returns:
        NaN if any difference is not a number; None if nothing could be compared.
    """
    found = largest_differences(run, baseline).values()
    if any(math.isnan(difference) for difference in found):
        return math.nan
    return max(found, default=None)


def largest_differences(run: Run, baseline: Baseline) -> dict[int, float]:
    """Batch → the largest |resumed − uninterrupted| of any compared loss of it, NaN if one is no number."""
    found: dict[int, float] = {}
    for attempt in run.attempts:
        for pair in _pairs(attempt, baseline) if same_work(run, baseline, attempt) else ():
            for difference, _, _ in pair.differences:
                known = found.get(pair.found.batch, 0.0)
                found[pair.found.batch] = known if difference <= known or math.isnan(known) else difference
    return found


def _pairs(attempt: AttemptRun, baseline: Baseline) -> Iterator[_Pair]:
    """In order of batch, then rank."""
    same = attempt.world_size == baseline.world_size
    golden = {rank: {batch.batch: batch for batch in log.batches} for rank, log in baseline.ranks.items()}
    if not golden:
        return
    any_rank = golden[min(golden)]
    rows = [(batch.batch, rank, batch) for rank, log in attempt.ranks.items() for batch in log.batches]
    for number, rank, batch in sorted(rows, key=lambda row: row[:2]):
        expected = golden.get(rank, {}).get(number) if same else any_rank.get(number)
        if expected is not None:
            yield _Pair(rank, expected, batch, own=same)


def _no_numbers(attempt: AttemptRun, pairs: list[_Pair]) -> list[Finding]:
    """The first batch that has no loss to be compared, as it has none in the uninterrupted run."""
    first = next((pair for pair in pairs if pair.is_no_number), None)
    if first is None:
        return []
    number = len({pair.found.batch for pair in pairs if pair.is_no_number})
    text = f"the loss of batch {first.found.batch} is no finite number, in the uninterrupted run as in attempt {attempt.index}"
    text += f" ({number} of {len({pair.found.batch for pair in pairs})} batches), so that nothing can be compared there"
    text += "; expected a job whose losses are finite, or that skips such a batch"
    place = {"step": first.expected.step, "rank": first.rank, "attempt": attempt.index}
    return [inconclusive("not-comparable", _ORACLE, text, expected="a finite loss", found=hex_text(first.found.loss), **place)]


def _first_difference(attempt: AttemptRun, pairs: list[_Pair], most: Allowed) -> list[Finding]:
    different = [pair for pair in pairs if pair.differs(most(pair.found.batch))]
    if not different:
        return []
    number = different[0].found.batch
    tolerance = most(number)
    here = [pair for pair in different if pair.found.batch == number]
    # The global mean is off on every rank; a rank whose own loss is off tells where it began.
    pair = next((pair for pair in here if len(pair.beyond(tolerance)) == len(pair.differences)), here[0])
    done = {p.found.batch for p in pairs}
    count = f"{len({p.found.batch for p in different})} of {len(done)} differ"
    where = _where(attempt, number, min(done))
    step = pair.expected.step
    at = f"step {step}" if step == number else f"batch {number} (step {step})"
    if pair.other_course:
        message = f"{at}, {where}, took another course ({count})"
        expected, found = _course(pair.expected), _course(pair.found)
    else:
        message = f"loss differs at {at}, {where} ({count})"
        _, first, second = pair.beyond(tolerance)[0]
        expected, found = hex_text(first), hex_text(second)
    # Before any resume nothing can have been lost: the arithmetic of the step is another one.
    component = "gradients" if attempt.index == 0 else "none"
    place = {"component": component, "step": step, "rank": pair.rank, "attempt": attempt.index}
    return [fail("diverged", _ORACLE, message, expected=expected, found=found, limit=tolerance, **place)]


def _where(attempt: AttemptRun, number: int, first: int) -> str:
    if attempt.index == 0:
        return "before any resume"
    resumed = "the resume" if attempt.index == 1 else f"resume {attempt.index}"
    return f"the first step after {resumed}" if number == first else f"{number - first + 1} steps after {resumed}"


def _course(batch: Batch) -> str:
    return f"{batch.tag} {batch.reason}, step {batch.step}" if batch.reason else f"{batch.tag}, step {batch.step}"


def _batch_sets(run: Run, baseline: Baseline) -> list[Finding]:
    """What is missing or too much; numbers of unequal sets would compare one batch with another."""
    planned = {batch.batch for log in baseline.ranks.values() for batch in log.batches}
    done = {batch.batch for attempt in run.attempts for log in attempt.ranks.values() for batch in log.batches}
    if not planned:
        return [inconclusive("not-comparable", _ORACLE, "the uninterrupted run logged no batch; expected at least one")]
    if not done:
        if run.plan.scenario.expect == "refuses":
            return []
        return [inconclusive("not-comparable", _ORACLE, "no attempt logged any batch; expected at least one")]
    findings = []
    if done - planned:
        # Of the first launch that did any: what it did before explains them, as an epoch that was done twice.
        doing = [a.index for a in run.attempts if any(b.batch not in planned for log in a.ranks.values() for b in log.batches)]
        findings.append(
            fail(
                "diverged",
                _ORACLE,
                f"batches {numbers_text(sorted(done - planned))} were done, which the uninterrupted run never did",
                component="counters",
                attempt=doing[0],
                expected=f"batches {numbers_text(sorted(planned))}",
                found=f"batches {numbers_text(sorted(done))}",
            )
        )
    # Of a job that did not finish, only what lies before its last batch can be called missing.
    last = max(planned) if run.attempts and finished(run.attempts[-1]) else max(done)
    missing = sorted(number for number in planned - done if number <= last)
    if missing:
        whole_tail = missing[0] > max(done)
        findings.append(
            fail(
                "silent-exit" if whole_tail else "data-skipped",
                _ORACLE,
                f"batches {numbers_text(missing)} were never done, in no attempt",
                component="counters",
                attempt=run.attempts[-1].index,
                expected=f"batches {numbers_text(sorted(planned))}",
                found=f"batches {numbers_text(sorted(done))}",
            )
        )
    return findings + _order(run)


def _order(run: Run) -> list[Finding]:
    """Each rank of each attempt goes on right behind its checkpoint, one batch after the other."""
    history = History(run)
    findings = []
    for attempt in run.attempts:
        starts = {resume.rank: resume for resume in history.resumes[attempt.index]}
        for rank, log in attempt.ranks.items():
            numbers = [batch.batch for batch in log.batches]
            if not numbers:
                continue
            first = starts[rank].batch + 1 if rank in starts else numbers[0]
            wanted = list(range(first, first + len(numbers)))
            if numbers == wanted:
                continue
            at = next(i for i, (number, want) in enumerate(zip(numbers, wanted, strict=True)) if number != want)
            repeated = numbers[at] < wanted[at] or Counter(numbers)[numbers[at]] > 1
            findings.append(
                fail(
                    "data-repeated" if repeated else "data-skipped",
                    _ORACLE,
                    f"rank {rank} did batch {numbers[at]} where batch {wanted[at]} was due, in attempt {attempt.index}",
                    component="counters",
                    step=log.batches[at].step,
                    rank=rank,
                    attempt=attempt.index,
                    expected=f"batch {wanted[at]}",
                    found=f"batch {numbers[at]}",
                )
            )
    return findings
