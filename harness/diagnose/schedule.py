"""Patterns of learning rates: the schedule is ahead, behind, begun again, stuck, multiplied, or right one update late.

Each compares the learning rates of the updates after the resume with the uninterrupted run's, update by update; rates count as
equal up to a relative difference of 1e-9, since some schedules are computed from the rate before.
Does not tell: why (the scheduler was not restored, or stepped once too often); rates that are right and a scheduler whose own
record is not; rates of other groups than the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from harness.diagnose.evidence import Evidence
from harness.oracle.diagnosis import Pattern

FAMILY, _COMPONENT = "schedule", "scheduler"
_SAME = 1e-9


class _Rates:
    """The rates of the updates after the resume, and of all updates of the uninterrupted run, counted from 1.

    Attributes:
        start: updates done at the resume.
        common: the updates from the first wrong rate on of which both rates are known.
        late: where that is not the first update after the resume, from where on, in words.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.start = evidence.resume.step if evidence.resume is not None else 0
        done = [batch for batch in evidence.after if batch.tag == "STEP"]
        self.found = {self.start + n: batch.learning_rate for n, batch in enumerate(done, 1)}
        self.golden = {b.step: b.learning_rate for b in evidence.golden_batches.values() if b.tag == "STEP"}
        compared = [step for step in self.found if step in self.golden]
        # The first rates can be right: an optimizer that was restored has its rate until its scheduler moves for the first time.
        first = next((n for n, step in enumerate(compared) if not _same(self.found[step], self.golden[step])), len(compared))
        self.common = compared[first:]
        self.late = f"from update {self.common[0]} on, " if first and self.common else ""

    @property
    def wrong(self) -> bool:
        """Whether there is one that is another one, and all from there on are numbers."""
        return bool(self.common) and all(
            math.isfinite(rates[step]) for rates in (self.found, self.golden) for step in self.common
        )

    def shifted_by(self, shift: int) -> int:
        """How many rates are the uninterrupted run's `shift` updates later; 0 unless all that can be compared are."""
        pairs = [(self.found[step], self.golden[step + shift]) for step in self.common if step + shift in self.golden]
        return len(pairs) if pairs and all(_same(rate, golden) for rate, golden in pairs) else 0


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME)


def shifted(evidence: Evidence) -> list[Pattern]:
    """`schedule-restarted`, `schedule-behind`, `schedule-ahead`: the rates are the uninterrupted run's of other updates."""
    rates = _Rates(evidence)
    if not rates.wrong:
        return []
    last = max(rates.golden)
    fits = {shift: count for shift in range(-rates.start, last - rates.start) if shift and (count := rates.shifted_by(shift))}
    # One rate that happens to be equal is no pattern where there is more to compare.
    fits = {shift: count for shift, count in fits.items() if count >= min(2, len(rates.common))}
    chosen = {max((s for s in fits if s < 0), default=0), min((s for s in fits if s > 0), default=0)} - {0}
    found = []
    for shift in sorted(chosen | ({-rates.start} & fits.keys()), key=lambda one: (abs(one), one)):
        updates = f"{abs(shift)} update{'s' * (abs(shift) != 1)}"
        seen = f"{rates.late}{fits[shift]} of {len(rates.common)} learning rates after the resume are those of {updates} "
        seen += "later" if shift > 0 else "earlier"
        if shift == -rates.start:
            text = "the schedule was begun again: the learning rates after the resume are those of the job's first updates"
            found.append(_pattern("schedule-restarted", text, seen))
        if shift != -rates.start or shift == -1:
            way = "ahead" if shift > 0 else "behind"
            text = f"the schedule is {updates} {way} after the resume"
            found.append(_pattern(f"schedule-{way}", text, seen))
    return found


def stuck(evidence: Evidence) -> list[Pattern]:
    """`schedule-constant`, `schedule-disconnected`: the rate does not move any more, though the uninterrupted run's does."""
    rates = _Rates(evidence)
    values = [rates.found[step] for step in rates.common]
    golden = [rates.golden[step] for step in rates.common]
    if not rates.wrong or len(values) < 2 or not _constant(values) or _constant(golden):
        return []
    where = {_first(rates.golden): "of the first update", rates.golden.get(rates.start): "of the last update before the resume"}
    which = next((word for rate, word in where.items() if rate is not None and _same(rate, values[0])), "")
    seen = f"all {len(values)} learning rates after the resume are {values[0]:.6g}{f', that {which}' if which else ''}"
    if _scheduler_is_right(evidence):
        text = "the scheduler goes on and the optimizer no longer follows it: the learning rate stays where it is"
        return [_pattern("schedule-disconnected", text, f"{seen}; the scheduler's own digest is right at every later save")]
    return [_pattern("schedule-constant", "the learning rate no longer moves after the resume", seen)]


def scaled(evidence: Evidence) -> list[Pattern]:
    """`schedule-scaled`: every rate is the same multiple of the uninterrupted run's."""
    rates = _Rates(evidence)
    pairs = [(rates.found[step], rates.golden[step]) for step in rates.common]
    if not rates.wrong or len(pairs) < 2 or any(golden == 0 for _, golden in pairs):
        return []
    factors = [found / golden for found, golden in pairs]
    if not _constant(factors):
        return []
    text = f"every learning rate after the resume is {factors[0]:.6g} times what it should be"
    return [_pattern("schedule-scaled", text, f"{len(pairs)} of {len(pairs)} learning rates after the resume")]


def catches_up(evidence: Evidence) -> list[Pattern]:
    """`schedule-catches-up`: the first rates after the resume are wrong, and all after them are right."""
    rates = _Rates(evidence)
    right = [_same(rates.found[step], rates.golden[step]) for step in rates.common]
    num_wrong = right.index(True) if True in right else 0
    # A rate that happens to be right in the end is no schedule that was restored.
    if not rates.wrong or rates.late or not num_wrong or not all(right[num_wrong:]) or len(right) < 2 * num_wrong + 1:
        return []
    first, many = rates.common[0], num_wrong > 1
    text = f"the learning rate is wrong for the first {f'{num_wrong} updates' if many else 'update'} after the resume and right "
    text += "from then on: the schedule was restored, and the rate that the optimizer has was not"
    seen = f"update {first} was made at {rates.found[first]:.6g} instead of {rates.golden[first]:.6g}"
    seen += f", and {len(right) - num_wrong} of the {len(right)} rates after the resume are right"
    return [_pattern("schedule-catches-up", text, seen)]


def _constant(values: list[float]) -> bool:
    return all(_same(value, values[0]) for value in values)


def _first(rates: dict[int, float]) -> float | None:
    return rates[min(rates)] if rates else None


def _scheduler_is_right(evidence: Evidence) -> bool:
    compared = [
        (digests[_COMPONENT], golden[_COMPONENT])
        for rank in evidence.attempt.ranks
        for batch, digests in evidence.later(rank)
        if _COMPONENT in digests and _COMPONENT in (golden := evidence.golden_states.get(batch, {}).get(rank, {}))
    ]
    return bool(compared) and all(one == other for one, other in compared) and not evidence.wrong_ranks(_COMPONENT)


def _pattern(name: str, text: str, evidence: str) -> Pattern:
    return Pattern(name, FAMILY, _COMPONENT, text, evidence)


PATTERNS: tuple[Callable[[Evidence], list[Pattern]], ...] = (shifted, stuck, scaled, catches_up)
