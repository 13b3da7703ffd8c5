"""Patterns of data: batches again or left out, an epoch or the job begun again, another epoch's order, ranks that are swapped.

Each compares the samples of the batches after the resume with the uninterrupted run's. A match must hold from the first batch
after the resume on: for all that can be compared, or for at least three.
Does not tell: the order within a batch; samples that were not logged; what a sampler holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from harness.diagnose.evidence import Evidence, Samples
from harness.oracle.diagnosis import Pattern

FAMILY, _COMPONENT = "data", "data"
_ENOUGH = 3

Held = dict[int, dict[int, Samples]]  # batch → rank → samples


class _Data:
    """Samples after the resume and of the uninterrupted run; of all ranks together, and by rank."""

    def __init__(self, evidence: Evidence) -> None:
        self.start = evidence.resume.batch if evidence.resume is not None else 0
        self.by_rank = evidence.samples(evidence.attempt.ranks)
        self.golden_by_rank = evidence.samples(evidence.baseline.ranks)
        self.found, self.golden = _together(self.by_rank), _together(self.golden_by_rank)
        self.common = [batch for batch in self.found if batch in self.golden]
        self.batches = evidence.golden_batches

    @property
    def wrong(self) -> bool:
        return any(self.found[batch] != self.golden[batch] for batch in self.common)

    def shifted_by(self, shift: int) -> tuple[int, int]:
        """(how many batches from the first on are the uninterrupted run's `shift` batches later, how many can be compared)."""
        pairs = [(samples, self.golden[b + shift]) for b, samples in self.found.items() if b + shift in self.golden]
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
        return same, len(pairs)

    def epoch_starts(self) -> list[int]:
        """Batches done at the beginning of each epoch of the uninterrupted run: an epoch ends before a sample comes again."""
        starts, seen = [0], set[int]()
        for batch, samples in self.golden.items():
            if seen & set(samples):
                starts.append(batch - 1)
                seen = set()
            seen |= set(samples)
        return starts


def _together(held: Held) -> dict[int, Samples]:
    return {batch: tuple(sorted(index for part in parts.values() for index in part)) for batch, parts in held.items()}


def epoch_starts(evidence: Evidence) -> list[int]:
    """Batches done at the beginning of each epoch of the uninterrupted run; [0] where it logged no samples."""
    return _Data(evidence).epoch_starts()


def shifted(evidence: Evidence) -> list[Pattern]:
    """`batch-repeated`, `batch-skipped`, `epoch-restarted`, `data-restarted`, `epoch-off`: other batches' samples, in order."""
    data = _Data(evidence)
    if not data.wrong:
        return []
    fits: dict[int, tuple[int, int]] = {}
    for shift in range(-data.start, max(data.golden) - data.start):
        same, compared = data.shifted_by(shift)
        if shift and same and (same == compared or same >= _ENOUGH):
            fits[shift] = (same, compared)
    starts = data.epoch_starts()
    epoch = max((start for start in starts if start <= data.start), default=0)
    lengths = {after - before for before, after in itertools.pairwise(starts)}
    length = lengths.pop() if len(lengths) == 1 else 0
    chosen = {max((s for s in fits if s < 0), default=0), min((s for s in fits if s > 0), default=0)} - {0}
    chosen |= {-data.start, epoch - data.start} & fits.keys()
    found = []
    for shift in sorted(chosen, key=lambda one: (abs(one), one)):
        same, compared = fits[shift]
        way = "later" if shift > 0 else "earlier"
        seen = f"{same} of {compared} batches after the resume hold the samples of {_batches(abs(shift))} {way}"
        found += [_pattern(name, text, seen) for name, text in _meanings(data, shift, epoch, length)]
    return found


def _meanings(data: _Data, shift: int, epoch: int, length: int) -> list[tuple[str, str]]:
    """What a shift by so many batches can come of; several where the numbers are the same."""
    found = []
    if shift == -data.start:
        also = "" if epoch else ", which is that of its first epoch, in which it was resumed"
        found.append(("data-restarted", f"the data began again from the first batch of the job{also}"))
    elif shift == epoch - data.start:
        found.append(("epoch-restarted", "the data began again from the first batch of this epoch"))
    if length and shift % length == 0:
        text = f"the order of the data is that of {_count(abs(shift) // length, 'epoch')} {'later' if shift > 0 else 'earlier'}"
        found.append(("epoch-off", f"{text}: its number is wrong, or the generator that draws the order was seeded anew"))
    if not found or abs(shift) == 1:
        if shift < 0:
            found.append(("batch-repeated", f"{_batches(-shift)} around the resume {_was(-shift)} taken again"))
        else:
            found.append(("batch-skipped", f"{_batches(shift)} after the resume {_was(shift)} left out"))
    return found


def between_ranks(evidence: Evidence) -> list[Pattern]:
    """`ranks-swapped`, `one-rank-everywhere`: every rank, or one of them, has the samples of another one."""
    data = _Data(evidence)
    ranks = sorted(evidence.attempt.ranks)
    common = [batch for batch in data.by_rank if batch in data.golden_by_rank]
    if evidence.moved or len(ranks) < 2 or ranks != sorted(evidence.baseline.ranks) or not common:
        return []
    if all(data.by_rank[batch] == data.golden_by_rank[batch] for batch in common):
        return []
    sources: dict[int, set[int]] = {rank: set(ranks) for rank in ranks}
    for batch in common:
        golden = data.golden_by_rank[batch]
        for rank in ranks:
            sources[rank] &= {other for other in ranks if golden[other] == data.by_rank[batch][rank]}
    if not all(len(found) == 1 for found in sources.values()):
        return []
    taken = {rank: min(found) for rank, found in sources.items()}
    seen = f"{len(common)} of {len(common)} batches: " + ", ".join(f"rank {r} has rank {o}'s" for r, o in taken.items() if r != o)
    if len(set(taken.values())) == 1:
        return [_pattern("one-rank-everywhere", f"every rank takes the samples of rank {taken[ranks[0]]}", seen)]
    if len(set(taken.values())) == len(ranks):
        return [_pattern("ranks-swapped", "the ranks take each other's samples", seen)]
    return []


def reordered(evidence: Evidence) -> list[Pattern]:
    """`data-reordered`: samples that the uninterrupted run has too, in an order that it never had."""
    data = _Data(evidence)
    if not data.wrong:
        return []
    first = next(batch for batch in data.common if data.found[batch] != data.golden[batch])
    known = {index for samples in data.golden.values() for index in samples}
    if data.found[first] in data.golden.values() or not set(data.found[first]) <= known:
        return []
    text = "the order of the data is another one (its seed, or the generator that it was drawn from)"
    return [
        _pattern("data-reordered", text, f"batch {first} holds samples that no batch of the uninterrupted run holds together")
    ]


def epoch_number(evidence: Evidence) -> list[Pattern]:
    """`epoch-off`: the number of the epoch, as the job says it, is the same number too high or too low all the time."""
    golden = evidence.golden_batches
    off = {batch.epoch - golden[batch.batch].epoch for batch in evidence.after if batch.batch in golden}
    if len(off) != 1 or 0 in off or evidence.attempt.index == 0:
        return []
    by = off.pop()
    text = f"the number of the epoch is {abs(by)} too {'high' if by > 0 else 'low'} after the resume"
    compared = sum(batch.batch in golden for batch in evidence.after)
    return [Pattern("epoch-off", "epoch", "counters", text, f"{compared} of {compared} batches after the resume")]


def _batches(count: int) -> str:
    return _count(count, "batch", "es")


def _count(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{plural * (count != 1)}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _pattern(name: str, text: str, evidence: str) -> Pattern:
    return Pattern(name, FAMILY, _COMPONENT, text, evidence)


PATTERNS: tuple[Callable[[Evidence], list[Pattern]], ...] = (shifted, between_ranks, reordered, epoch_number)
