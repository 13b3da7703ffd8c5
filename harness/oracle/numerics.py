"""A batch whose numbers are not finite is skipped, and leaves no trace but a smaller loss scale.

Holds, in the uninterrupted run and in every attempt, when each batch that a planned `overflow`, `nan` or `nonfinite-grad`
hits is skipped on all ranks and completes no step; the next batch's loss scale is half of it, and the learning rate is the same
once more, where there is a scaler and a schedule that moves with every update; no
parameter ever becomes non-finite; the norm of the gradients that reach the optimizer is the one that the trainer says it has
measured, clipped to the limit that it says it keeps; and no more than 5 % of the other batches are skipped, those apart by
which a new loss scale finds its place at the start.

Does not verify: clipping where the log does not say what reached the optimizer; that the schedule did not advance on a skip
(where its rate stands still anyway); optimizer moments, which may be non-finite while the parameters are not yet; anything on a
rank that the batch did not reach.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from harness.fault import NumericFault
from harness.oracle.finding import Finding, fail
from harness.store import Baseline, Batch, RankLog, Run

_ORACLE = "numerics"
_SKIPPING = ("overflow", "nan", "nonfinite-grad")
MAX_SKIP_RATE = 0.05
# The usual first scale, 65536, is more than float16 can bear in most jobs: so many halvings belong to the start.
_MAX_SKIPS_AT_START = 5
_NORM_TOLERANCE = 1e-3


def numerics(run: Run, baseline: Baseline) -> list[Finding]:
    """Looks at every batch of the uninterrupted run, then of every attempt."""
    findings = _one_launch(run, baseline, baseline.ranks, None, baseline.world_size)
    for attempt in run.attempts:
        findings += _one_launch(run, baseline, attempt.ranks, attempt.index, attempt.world_size)
    planned = run.plan.numeric
    findings += _skip_rate([baseline.ranks], planned, "the uninterrupted run", None)
    last = run.attempts[-1].index if run.attempts else None
    return findings + _skip_rate([attempt.ranks for attempt in run.attempts], planned, "the interrupted run", last)


def _hit(batch: int, faults: Sequence[NumericFault]) -> NumericFault | None:
    """The fault that hits a batch, the last one of several. By its bounds: `times` may be any number."""
    return next((fault for fault in reversed(faults) if fault.batch <= batch < fault.batch + fault.times), None)


def _one_launch(run: Run, baseline: Baseline, ranks: dict[int, RankLog], attempt: int | None, world_size: int) -> list[Finding]:
    # A fault for ranks that this launch does not have hits nothing in it.
    hitting = [
        fault
        for fault in run.plan.numeric
        if fault.effect in _SKIPPING and any(fault.who.covers(rank) for rank in range(world_size))
    ]
    golden = {batch.batch: batch for batch in baseline.ranks[min(baseline.ranks)].batches} if baseline.ranks else {}
    findings: list[Finding] = []
    for rank, log in ranks.items():
        rows = log.batches
        for index, row in enumerate(rows):
            fault = _hit(row.batch, hitting)
            if fault is not None:
                before = rows[index - 1] if index else golden.get(row.batch - 1)
                after = rows[index + 1] if index + 1 < len(rows) else None
                findings += _planned(rank, row, before, after, fault, attempt)
        findings += _finite(rank, rows, attempt) + _clipped(rank, rows, attempt)
    return findings


def _planned(
    rank: int, row: Batch, before: Batch | None, after: Batch | None, fault: NumericFault, attempt: int | None
) -> list[Finding]:
    where = {"step": row.step, "rank": rank, "attempt": attempt}
    here = f"batch {row.batch} of rank {rank} ('{fault}'){_in(attempt)}"
    if row.tag != "SKIP":
        text = f"{here} was not skipped"
        return [fail("numerics", _ORACLE, text, component="gradients", expected="SKIP", found=row.tag, **where)]
    done = 0 if row.batch == 1 else None if before is None else before.step
    if done is not None and row.step != done:
        text = f"{here} was skipped, yet the step went from {done} to {row.step}"
        return [fail("numerics", _ORACLE, text, component="counters", expected=f"step {done}", found=f"step {row.step}", **where)]
    if row.scale is not None and after is not None and after.scale != row.scale / 2:
        half, found = f"{row.scale / 2:g}", "none" if after.scale is None else f"{after.scale:g}"
        text = f"{here} was skipped at loss scale {row.scale:g}, yet the next batch used {found}; expected {half}"
        return [fail("numerics", _ORACLE, text, component="scaler", expected=half, found=found, **where)]
    return _scheduled(here, before, row, after, where)


def _scheduled(here: str, before: Batch | None, row: Batch, after: Batch | None, where: dict[str, Any]) -> list[Finding]:
    """A schedule that moves with every update, and with a batch that made none."""
    if before is None or after is None or before.tag != "STEP" or row.scale is None:
        return []
    moves = before.learning_rate != row.learning_rate
    if not moves or after.learning_rate == row.learning_rate or math.isnan(after.learning_rate + row.learning_rate):
        return []
    rate, found = f"{row.learning_rate:.6g}", f"{after.learning_rate:.6g}"
    text = f"{here} was skipped, yet the schedule went on: the next batch has the learning rate {found}, not {rate} once more"
    return [fail("numerics", _ORACLE, text, component="scheduler", expected=rate, found=found, **where)]


def _finite(rank: int, rows: list[Batch], attempt: int | None) -> list[Finding]:
    broken = next((row for row in rows if not row.parameters_finite), None)
    if broken is None:
        return []
    text = f"parameters are not finite after batch {broken.batch} of rank {rank}{_in(attempt)}"
    where = {"component": "model", "step": broken.step, "rank": rank, "attempt": attempt}
    return [fail("numerics", _ORACLE, text, expected="finite parameters", found="not finite", **where)]


def _clipped(rank: int, rows: list[Batch], attempt: int | None) -> list[Finding]:
    for row in rows:
        wanted = min(row.grad_norm, row.max_norm)
        if row.tag != "STEP" or row.stepped_norm is None or not math.isfinite(wanted):
            continue
        # Negated, so that NaN is wrong too. What is left is the rounding of float32 sums in another order.
        if not abs(row.stepped_norm - wanted) <= _NORM_TOLERANCE * wanted:
            expected = f"{wanted:.6g} (norm {row.grad_norm:.6g}, clipped to {row.max_norm:g})"
            here = f"batch {row.batch} of rank {rank}{_in(attempt)}"
            text = f"gradients of norm {row.stepped_norm:.6g} reached the optimizer in {here}"
            where = {"component": "gradients", "step": row.step, "rank": rank, "attempt": attempt}
            return [fail("numerics", _ORACLE, text, expected=expected, found=f"{row.stepped_norm:.6g}", **where)]
    return []


def _skip_rate(
    launches: list[dict[int, RankLog]], planned: Sequence[NumericFault], whose: str, attempt: int | None
) -> list[Finding]:
    # Of one rank: the decision to skip is the same on all.
    of_launches = [ranks[min(ranks)].batches for ranks in launches if ranks]
    rows = [row for one in of_launches for row in one if not _hit(row.batch, planned)]
    free = {id(row) for one in of_launches for row in _at_start(one)}
    skipped = [row for row in rows if row.tag == "SKIP" and id(row) not in free]
    if not rows or len(skipped) / len(rows) <= MAX_SKIP_RATE:
        return []
    share = f"{len(skipped)} of {len(rows)}"
    text = f"{share} batches of {whose} were skipped that no fault had hit; expected at most {MAX_SKIP_RATE:.0%}"
    where = {"component": "scaler", "step": skipped[0].step, "attempt": attempt}
    return [fail("numerics", _ORACLE, text, expected=f"at most {MAX_SKIP_RATE:.0%}", found=share, **where)]


def _at_start(rows: list[Batch]) -> list[Batch]:
    """The skipped batches of a fresh start by which the loss scale has come down, as long as it has only come down."""
    found: list[Batch] = []
    if not rows or rows[0].batch != 1:
        return found
    for row, after in itertools.pairwise(rows):
        if row.scale is None or after.scale is None or after.scale > row.scale or len(found) == _MAX_SKIPS_AT_START:
            break
        if row.tag == "SKIP" and after.scale < row.scale:
            found.append(row)
    return found


def _in(attempt: int | None) -> str:
    return " in the uninterrupted run" if attempt is None else f" in attempt {attempt}"
