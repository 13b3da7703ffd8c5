"""The losses of a stored run beside those of the uninterrupted one, as series of numbers to be drawn. Pure.

Responsible for: which ranks and points are shown of very many, where faults and resumes stand on the axis of batches, and the
differences. Not responsible for: drawing (`harness.report.plots`), or whether a difference matters (`harness.oracle.loss`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.fault import DamageFault, NumericFault
from harness.oracle.history import parse_quietly, same_work
from harness.scenario import FIXED_TOLERANCE
from harness.store import AttemptRun, Baseline, RankLog, Run, read_baseline, read_run

MAX_POINTS, MAX_RANKS, MAX_MARKS = 400, 8, 24


@dataclass(frozen=True)
class Series:
    """One line of a plot.

    Attributes:
        rank: whose losses; -1 for the mean over all ranks.
        attempt: the launch; -1 for the uninterrupted run.
        points: (batch, value), in ascending order; a value may be NaN.
    """

    rank: int
    attempt: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Place:
    """Something that happened at a batch: a fault, or (`resume`) a restart; `text` says it."""

    batch: float
    text: str
    resume: bool = False


@dataclass(frozen=True)
class Curves:
    """What a plot of losses shows.

    Attributes:
        losses: of the uninterrupted run and of each attempt, rank by rank.
        differences: |resumed − uninterrupted| of the same batches; 0 where the bits are equal.
        places: faults and resumes, in order.
        tolerance: largest difference that is taken for equal.
        notes: what was left out, and what cannot be compared.
    """

    losses: tuple[Series, ...]
    differences: tuple[Series, ...]
    places: tuple[Place, ...]
    tolerance: float
    notes: tuple[str, ...]


def read_curves(path: Path) -> Curves | str:
    """The curves of a run directory, or why there are none."""
    try:
        run = read_run(path)
        baseline = read_baseline(run.directory.golden)
    except UsageError as error:
        return error.problems[0]
    return curves(run, baseline)


def curves(run: Run, baseline: Baseline) -> Curves | str:
    """The curves of a run, or why there are none."""
    logs = {(-1, rank): log for rank, log in baseline.ranks.items()}
    logs |= {(attempt.index, rank): log for attempt in run.attempts for rank, log in attempt.ranks.items()}
    if not any(log.batches for log in logs.values()):
        return "no rank has logged a batch, so there is no loss to draw"
    shown, notes = _ranks(run, baseline)
    losses = [_losses(attempt, rank, log) for (attempt, rank), log in logs.items() if rank in shown and log.batches]
    differences: list[Series] = []
    for attempt in run.attempts:
        if not same_work(run, baseline, attempt):
            notes.append(
                f"attempt {attempt.index} ran on {attempt.world_size} ranks with other batches than the uninterrupted run's "
                f"{baseline.world_size}: its losses are not compared"
            )
            continue
        differences += _differences(attempt, baseline, shown)
    points = sum(len(one.points) for one in (*losses, *differences))
    losses, differences = [_thinned(one) for one in losses], [_thinned(one) for one in differences]
    drawn = sum(len(one.points) for one in (*losses, *differences))
    if drawn < points:
        notes.append(f"{drawn} of {points} points are drawn: of each stretch the first, the last, the lowest and the highest")
    places = _places(run)
    if len(places) > MAX_MARKS:
        notes.append(f"the first {MAX_MARKS} of {len(places)} faults and resumes are marked")
    asked = run.plan.scenario.tolerance
    tolerance = FIXED_TOLERANCE if asked == "auto" else asked
    if asked == "auto":
        notes.append(f"the tolerance was measured (auto); the line at {FIXED_TOLERANCE:g} is the usual one")
    return Curves(tuple(losses), tuple(differences), tuple(places[:MAX_MARKS]), tolerance, tuple(dict.fromkeys(notes)))


def _ranks(run: Run, baseline: Baseline) -> tuple[set[int], list[str]]:
    """The ranks to be shown; of many, those whose losses differ most."""
    ranks = {rank for attempt in run.attempts for rank in attempt.ranks} | set(baseline.ranks)
    if len(ranks) <= MAX_RANKS:
        return ranks, []
    worst: dict[int, float] = dict.fromkeys(ranks, 0.0)
    for attempt in run.attempts:
        for one in _differences(attempt, baseline, ranks):
            values = [math.inf if math.isnan(value) else value for _, value in one.points]
            worst[one.rank] = max([worst.get(one.rank, 0.0), *values])
    chosen = set(sorted(ranks, key=lambda rank: (-worst[rank], rank))[:MAX_RANKS])
    return chosen, [f"{MAX_RANKS} of {len(ranks)} ranks are drawn: those whose losses differ most"]


def _losses(attempt: int, rank: int, log: RankLog) -> Series:
    return Series(rank, attempt, tuple((batch.batch, batch.loss) for batch in log.batches))


def _differences(attempt: AttemptRun, baseline: Baseline, ranks: Iterable[int]) -> list[Series]:
    """Rank by rank on the same number of ranks, else of the mean over all."""
    if attempt.world_size == baseline.world_size:
        found = [
            Series(rank, attempt.index, _subtract(_by_batch(attempt.ranks[rank]), _by_batch(baseline.ranks[rank])))
            for rank in sorted(ranks)
            if rank in attempt.ranks and rank in baseline.ranks
        ]
    else:
        means = [_means(ranks) for ranks in (attempt.ranks, baseline.ranks)]
        found = [Series(-1, attempt.index, _subtract(*means))]
    return [one for one in found if one.points]


def _by_batch(log: RankLog) -> dict[int, float]:
    return {batch.batch: batch.loss for batch in log.batches}


def _means(ranks: dict[int, RankLog]) -> dict[int, float]:
    return {b.batch: b.global_loss for log in ranks.values() for b in log.batches if b.global_loss is not None}


def _subtract(one: dict[int, float], other: dict[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((batch, _difference(one[batch], other[batch])) for batch in sorted(one.keys() & other.keys()))


def _difference(one: float, other: float) -> float:
    # A batch that is skipped in both runs has no number in either, and that is equal.
    return 0.0 if (math.isnan(one) and math.isnan(other)) or one == other else abs(one - other)


def _thinned(series: Series) -> Series:
    points = series.points
    if len(points) <= MAX_POINTS:
        return series
    size = math.ceil(len(points) / (MAX_POINTS // 4))
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        # NaN compares with nothing; it is what must not be lost.
        numbers = [point for point in stretch if not math.isnan(point[1])]
        extreme = [min(numbers, key=_value), max(numbers, key=_value)] if numbers else []
        odd = [point for point in stretch if math.isnan(point[1])][:1]
        kept += sorted({stretch[0][0]: stretch[0], stretch[-1][0]: stretch[-1], **{p[0]: p for p in (*extreme, *odd)}}.values())
    return Series(series.rank, series.attempt, tuple(kept))


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _places(run: Run) -> list[Place]:
    found = [Place(fault.batch, f"{fault}, in every attempt") for fault in run.plan.numeric]
    reached = 0
    for attempt in run.attempts:
        began = _resumed_batch(attempt)
        if attempt.index:
            text = (
                f"attempt {attempt.index} never got to its first batch"
                if began is None
                else f"attempt {attempt.index} goes on here"
            )
            found.append(Place(reached if began is None else began, text, resume=True))
        start = reached if began is None else began
        for sentence, rank, time_s in _fired(attempt):
            fault = parse_quietly(sentence)
            if isinstance(fault, NumericFault):
                continue
            batch = reached if isinstance(fault, DamageFault) else _batch_at(attempt, rank, time_s, start)
            who = "" if rank is None or rank < 0 or f"rank {rank}" in sentence else f", rank {rank}"
            found.append(Place(batch, f"{sentence}{who} (attempt {attempt.index})"))
        reached = max((batch.batch for log in attempt.ranks.values() for batch in log.batches), default=reached)
    return found


def _fired(attempt: AttemptRun) -> list[tuple[str, int | None, float]]:
    """Each fault once: one that is there `always` fires at every call."""
    found: dict[tuple[str, int | None], float] = {}
    for record in attempt.of("fired"):
        rank = record.get("rank")
        found.setdefault((str(record.get("fault")), rank if isinstance(rank, int) else None), _time(record))
    return [(sentence, rank, time_s) for (sentence, rank), time_s in found.items()]


def _time(record: dict[str, object]) -> float:
    time_s = record.get("time_s")
    return float(time_s) if isinstance(time_s, int | float) else 0.0


def _batch_at(attempt: AttemptRun, rank: int | None, time_s: float, start: int) -> float:
    """Half a batch behind the last one that the rank (or any) had done by then."""
    logs: Sequence[RankLog] = (
        [attempt.ranks[rank]] if rank is not None and rank in attempt.ranks else list(attempt.ranks.values())
    )
    done = [int(r["batch"]) for log in logs for r in log.of("batch") if isinstance(r.get("batch"), int) and _time(r) <= time_s]
    return max(done, default=start) + 0.5


def _resumed_batch(attempt: AttemptRun) -> int | None:
    """The batch after which an attempt goes on: the one before its first, else what it says of the checkpoint."""
    first = [log.batches[0].batch - 1 for log in attempt.ranks.values() if log.batches]
    said = [log.resumed_from for log in attempt.ranks.values() if log.resumed_from is not None]
    return min(first or said, default=None)
