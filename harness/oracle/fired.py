"""Every planned fault has happened, as planned, and nothing else has killed the job.

Holds when each planned fault of each attempt has a record of its own in that attempt, made by a rank and at a place that
the plan speaks of; the batches of numeric faults were reached in the uninterrupted run; and no rank was killed by a
signal that the harness did not send. What does not hold makes the case INCONCLUSIVE: a case that nobody attacked, or that
somebody else attacked, proves nothing.

Does not verify: that the effect was what the kernel promises (that a truncated file is short, that k bytes have landed:
the injector's own tests do); that a fault with `times N` fired all N times, since a trainer may rightly give up after the
first; that a spike was felt.
"""

from __future__ import annotations

import itertools

from harness.fault import (
    DamageFault,
    DiskFault,
    ErrnoFault,
    Fault,
    HoldFault,
    NumericFault,
    PowerCutFault,
    SignalFault,
    StepPoint,
    matches_path,
)
from harness.oracle.finding import Finding, inconclusive, numbers_text
from harness.oracle.history import foreign_deaths
from harness.store import Baseline, Record, Run

_ORACLE = "fired"


def fired(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares the plan's faults with what was recorded."""
    findings = [_foreign(attempt.index, record) for attempt in run.attempts for record in foreign_deaths(attempt)]
    return findings + unfired(run) + [finding for fault in run.plan.numeric for finding in _numeric(fault, baseline)]


def unfired(run: Run) -> list[Finding]:
    """The planned faults that did not happen, or not as planned; other oracles then hold their tongue about their effect."""
    findings = []
    for plan in run.plan.attempts:
        attempt = run.attempts[plan.index] if plan.index < len(run.attempts) else None
        for fault in plan.faults:
            if attempt is None:
                message = f"'{fault}' did not fire: attempt {plan.index} was never launched"
            else:
                records = attempt.of("damaged" if isinstance(fault, DamageFault) else "fired", fault=str(fault))
                wrong = [text for record in records if (text := _contradiction(fault, record, plan.world_size))]
                if records and not wrong:
                    continue
                what = f"fired, but {wrong[0]}" if wrong else "did not fire"
                if not wrong and isinstance(fault, HoldFault):
                    what += ": the operation to hold never came"
                if not wrong and (eclipsed := attempt.of("eclipsed", fault=str(fault))):
                    what += f": the call that it was for was answered by '{eclipsed[0].get('by')}' (choose another occurrence)"
                message = f"'{fault}' {what}, in attempt {plan.index}"
            findings.append(
                inconclusive(
                    "fault-did-not-fire", _ORACLE, message, attempt=plan.index, expected=str(fault), found="not fired as planned"
                )
            )
    return findings


def _contradiction(fault: Fault, record: Record, world_size: int) -> str:
    """Where a record does not fit the plan, in words; "" if it does."""
    if isinstance(fault, (DamageFault, DiskFault, NumericFault)):
        return ""
    rank, path, step = record.get("rank"), record.get("path"), record.get("step")
    if isinstance(rank, int) and not _concerns(fault, rank, world_size):
        return f"on rank {rank}"
    point = fault.point
    if isinstance(point, StepPoint):
        return f"at step {step}" if isinstance(step, int) and step != point.step else ""
    if record.get("operation") not in (None, point.operation):
        return f"on {record['operation']}"
    # A rename has two paths and the record may hold the other one.
    if isinstance(path, str) and point.operation not in ("rename", "link", "symlink") and not matches_path(point.pattern, path):
        return f"on {path}"
    landed = record.get("bytes_landed")
    limit = None if point.position is None else point.position.byte
    if point.moment == "during" and isinstance(landed, int) and limit is not None and 0 <= limit < landed:
        return f"after {landed} bytes had landed"
    return ""


def _concerns(fault: SignalFault | PowerCutFault | HoldFault | ErrnoFault, rank: int, world_size: int) -> bool:
    if isinstance(fault, (ErrnoFault, HoldFault)):
        return fault.who.covers(rank)
    return fault.triggered_by(rank) or rank in fault.victims(world_size, rank)


def _foreign(attempt: int, record: Record) -> Finding:
    rank, signal = int(record["rank"]), record.get("signal")
    return inconclusive(
        "foreign-death",
        _ORACLE,
        f"rank {rank} was killed by {signal} in attempt {attempt}, which the harness did not send",
        component="process",
        rank=rank,
        attempt=attempt,
        expected="no signal but the harness's own",
        found=str(signal),
    )


def _numeric(fault: NumericFault, baseline: Baseline) -> list[Finding]:
    end = fault.batch + fault.times  # a range, and never a list: `times` may be any number
    reached = sorted({batch.batch for log in baseline.ranks.values() for batch in log.batches})
    within = [batch for batch in reached if fault.batch <= batch < end]
    if len(within) == fault.times:
        return _micro_batches(fault, baseline)
    edges = [fault.batch - 1, *within, end]
    missing = [_from_to(a + 1, b - 1) for a, b in itertools.pairwise(edges) if b - a > 1]
    message = f"'{fault}' did not happen: the uninterrupted run never reached batch {', '.join(missing)}"
    found = f"batches {numbers_text(reached)}" if reached else "no batch"
    expected = f"batches {_from_to(fault.batch, end - 1)}"
    return [inconclusive("fault-did-not-fire", _ORACLE, message, expected=expected, found=found)]


def _micro_batches(fault: NumericFault, baseline: Baseline) -> list[Finding]:
    """A part that a batch does not have is never bad; a trainer that does not say how many parts there are is believed."""
    logs = [log for rank, log in baseline.ranks.items() if fault.who.covers(rank)]
    hit = [batch for log in logs for batch in log.batches if fault.batch <= batch.batch < fault.batch + fault.times]
    short = [batch for batch in hit if batch.micro_batches is not None and batch.micro_batches < fault.micro_batch]
    if not short:
        return []
    count = short[0].micro_batches
    message = (
        f"'{fault}' did not happen: batch {short[0].batch} of the uninterrupted run has {count} micro-batch{'es' * (count != 1)}"
    )
    expected, found = f"micro-batch {fault.micro_batch}", f"{count} calls of backward before the update"
    return [inconclusive("fault-did-not-fire", _ORACLE, message, expected=expected, found=found)]


def _from_to(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
