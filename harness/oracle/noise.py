"""How large a difference of the loss is by nature: what one flipped last bit of every weight makes of it, batch by batch.

With `tolerance="auto"` the uninterrupted job is run once more for each place where a restart went on, with the last bit of every
weight flipped there; the logs of that run are in the baseline (`harness.baseline.flipped`). The noise at a batch is the largest
difference that the flip has made up to there, and no less than the resolution of a float32 at the loss. What is allowed is
`FACTOR` times as much, since another number of ranks rounds differently in every sum of every step, and the flip is done once; on
the baseline's number of ranks, where nothing may differ at all, it is never more than the fixed tolerance.

Does not verify: that the job is less sensitive to other changes than to this one; a difference that grows as noise does, out of
one that was too small: a job that makes a lot of little (it is called chaotic, and that is said) hides small errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.oracle.history import History
from harness.scenario import FIXED_TOLERANCE
from harness.store import AttemptRun, Baseline, Run

FACTOR = 16.0
# A flip whose effect has grown so much by the end that small errors can no longer be told from it.
CHAOTIC = 1e3
_RESOLUTION = 2.0**-23

Allowed = Callable[[int], float]


@dataclass(frozen=True)
class Noise:
    """What one flipped last bit of every weight has made of the loss.

    Attributes:
        after: batches done when it was flipped.
        first: difference of the loss of the first batch that feels it.
        last: the largest difference up to the end.
        num_batches: how many batches it was followed over.
        times: the largest difference of the judged run, as a multiple of the noise at its batch; None where nothing was compared.
        allowed: the largest difference that was allowed anywhere in the last attempt.
    """

    after: int
    first: float
    last: float
    num_batches: int
    times: float | None = None
    allowed: float = math.nan

    @property
    def growth(self) -> float:
        """How much the difference grew."""
        return self.last / self.first if self.first else math.inf

    def to_json(self) -> dict[str, float | bool | None]:
        """The entry `noise` of a case; what is no finite number is null."""
        numbers = {"first": self.first, "last": self.last, "times": self.times, "allowed": self.allowed}
        finite = {name: value if value is not None and math.isfinite(value) else None for name, value in numbers.items()}
        return {"after": self.after, "batches": self.num_batches, "chaotic": self.is_chaotic, **finite}

    @property
    def is_chaotic(self) -> bool:
        """Whether so much comes of so little that small errors cannot be told from it."""
        return not math.isfinite(self.last) or self.growth > CHAOTIC or self.last * FACTOR > 100 * FIXED_TOLERANCE


def curve(baseline: Baseline, after: int) -> dict[int, float]:
    """Batch → noise there; empty where no run was flipped after so many batches."""
    flipped = baseline.flipped.get(after, {})
    if not flipped or not baseline.ranks:
        return {}
    rank = min(baseline.ranks)
    golden = {batch.batch: batch for batch in baseline.ranks[rank].batches}
    found: dict[int, float] = {}
    largest = 0.0
    for batch in flipped[rank].batches if rank in flipped else ():
        plain = golden.get(batch.batch)
        if plain is None or plain.global_loss is None or batch.global_loss is None or batch.batch <= after:
            continue
        if plain.tag == "SKIP" or batch.tag == "SKIP":
            difference = 0.0 if plain.tag == batch.tag else math.inf
        else:
            difference = abs(batch.global_loss - plain.global_loss)
        largest = max(largest, math.inf if math.isnan(difference) else difference)
        found[batch.batch] = max(largest, _RESOLUTION * abs(plain.global_loss) if math.isfinite(plain.global_loss) else 0.0)
    return found


def places(run: Run) -> tuple[int, ...]:
    """Batches done where a last bit must be flipped for this run to be judged: where its restarts went on."""
    history = History(run)
    found = {resume.batch for attempt in run.attempts if (resume := history.resume_of(attempt.index)) is not None}
    # A job that is compared with a plainer one may differ from its first batch on.
    return tuple(sorted(found | ({0} if run.plan.scenario.compare_with != "same" else set())))


def allowed(run: Run, baseline: Baseline, attempt: AttemptRun) -> Allowed:
    """The largest difference of the loss that is allowed at a batch of an attempt."""
    tolerance = run.plan.scenario.tolerance
    if tolerance != "auto":
        return lambda _: float(tolerance)
    noise = _joined(run, baseline, attempt)
    ranks = {one.world_size for one in run.attempts[: attempt.index + 1]} | {baseline.world_size}
    most = FIXED_TOLERANCE if len(ranks) == 1 and run.plan.scenario.compare_with == "same" else math.inf
    if not noise:
        return lambda _: FIXED_TOLERANCE
    # Beyond every bound is no measure; `unusable` then says that nothing can be told.
    return lambda batch: min(most, FACTOR * noise[batch]) if math.isfinite(noise.get(batch, math.inf)) else FIXED_TOLERANCE


def unusable(run: Run, baseline: Baseline) -> list[str]:
    """Why the tolerance cannot come of the noise although it is to, one sentence per place."""
    if run.plan.scenario.tolerance != "auto":
        return []
    last = max((b.batch for log in baseline.ranks.values() for b in log.batches), default=0)
    found = []
    for place in places(run):
        values = curve(baseline, place)
        if place < last and not values:
            found.append(f"no run with bits flipped after batch {place} was stored, so nobody knows the noise from there on")
        elif not all(map(math.isfinite, values.values())):
            found.append(
                f"bits flipped after batch {place} make a difference without bound, so that no error can be told from noise"
            )
    return found


def noise_of(run: Run, baseline: Baseline, differences: dict[int, float]) -> Noise | None:
    """The noise beside which a run was judged.

    Args:
        run: the case.
        baseline: its uninterrupted run.
        differences: batch → the largest difference of a loss there.

    Returns:
        None where none was measured.
    """
    if run.plan.scenario.tolerance != "auto":
        return None
    curves = {place: found for place in places(run) if (found := curve(baseline, place))}
    if not curves:
        return None
    place, found = next(iter(curves.items()))
    joined = _joined(run, baseline, run.attempts[-1])
    times = [difference / joined[batch] for batch, difference in differences.items() if joined.get(batch)]
    limits = list(map(allowed(run, baseline, run.attempts[-1]), joined))
    worst = math.nan if any(map(math.isnan, times)) else max(times, default=None)
    return Noise(place, found[min(found)], found[max(found)], len(found), worst, max(limits, default=math.nan))


def _joined(run: Run, baseline: Baseline, attempt: AttemptRun) -> dict[int, float]:
    """Batch → the noise of all restarts up to an attempt; the larger where two overlap."""
    history = History(run)
    resumes = [r.batch for one in run.attempts[: attempt.index + 1] if (r := history.resume_of(one.index)) is not None]
    joined: dict[int, float] = {}
    for place in {*resumes, *((0,) if run.plan.scenario.compare_with != "same" else ())}:
        for batch, value in curve(baseline, place).items():
            joined[batch] = max(value, joined.get(batch, 0.0))
    return joined
