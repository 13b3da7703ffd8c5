"""From a plan's faults to an answer for each operation: what is armed, what has fired, what the log says of it.

Responsible for: counting occurrences, choosing the fault, the order "write it down, then do it", quota and small disks,
and following the ranks' event logs (each line passes the gate before it is written, so a rank is known to be exactly
there). Not responsible for: how processes are killed, which the supervisor does.
"""

from __future__ import annotations

import errno
import json
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.fault import (
    SIGNALS,
    DiskFault,
    ErrnoFault,
    HoldFault,
    OperationPoint,
    PowerCutFault,
    SignalFault,
    StepPoint,
)
from harness.inject import disk
from harness.inject.effects import CannotPerformError, perform, proceed
from harness.inject.loss_log import LossLog
from harness.inject.operation import Operation
from harness.inject.recorder import Recorder
from harness.plan import AttemptPlan
from harness.store import RecordWriter

_LOG_LINE_BYTES = 1 << 20
_Killing = (SignalFault, PowerCutFault)
Armed = SignalFault | PowerCutFault | ErrnoFault


class Actions(Protocol):
    """What the injector asks of the supervisor."""

    def signal_ranks(self, ranks: Sequence[int], number: signal.Signals, why: str) -> None:
        """Sends a signal to all of these ranks, as nearly at once as can be."""

    def fired(self, fault: object, rank: int, **facts: Any) -> None:
        """Writes down that a fault has fired."""

    def released(self, fault: object, rank: int, why: str) -> None:
        """A held operation goes on."""

    def eclipsed(self, fault: object, by: object, rank: int) -> None:
        """A fault was due at a call that an earlier fault of the plan takes; one call has one answer."""

    def seen(self, rank: int, pid: int) -> None:
        """A rank works on files; this is its process, in case that was not known."""

    def noted(self, rank: int, record: dict[str, Any]) -> None:
        """A rank is about to write this line to its event log; it waits until this returns."""

    def others_wait(self) -> bool:
        """Whether nothing but held operations has been going on for a while, so that the others can only wait for these."""


@dataclass
class _Held:
    """An operation that waits; `fault` is None where it only lets the other ranks go first."""

    operation: Operation
    fault: HoldFault | None
    happened: bool = False


class Injector:
    """Answers the operations of one attempt.

    Args:
        plan: the faults of this attempt.
        root: the checkpoint directory.
        logs: absolute path → rank, of the event logs.
        actions: the supervisor.
        operations: where each operation is recorded, in order.
        recorder: does every operation and records what it did; None where only the order is wanted.
        last_rank: a rank whose every operation waits until the others can go on no further without it.
        texts: absolute path → reader, of logs in which a trainer says its losses.
    """

    def __init__(
        self,
        plan: AttemptPlan,
        root: Path,
        logs: dict[str, int],
        actions: Actions,
        operations: RecordWriter,
        recorder: Recorder | None = None,
        last_rank: int | None = None,
        texts: Mapping[str, LossLog] | None = None,
    ) -> None:
        self._plan, self._root, self._logs, self._actions, self._log = plan, root, logs, actions, operations
        self._recorder, self._last_rank, self._texts = recorder, last_rank, texts or {}
        self._held: list[_Held] = []
        self._dead: set[int] = set()
        self._seen: Counter[tuple[int, int]] = Counter()  # (fault, rank) → matching operations so far
        self._bound: dict[int, int] = {}  # fault of "any rank" → the rank that reached it first
        self._spent: set[int] = set()
        self._disk_fired = False
        self._number = 0

    def decide(self, operation: Operation) -> None:
        """Answers one operation, or kills its rank instead."""
        if operation.resolved[0] in self._texts:
            if operation.rank not in self._dead:
                self._attempt(self._follow_text, operation)
            return
        log_rank = self._logs.get(operation.resolved[0])
        if (operation.rank if log_rank is None else log_rank) in self._dead:
            return  # it was killed before it got here; what it asked for must not happen
        self._actions.seen(operation.rank if log_rank is None else log_rank, operation.pid)
        if log_rank is not None:
            self._attempt(lambda operation: self._follow_log(log_rank, operation), operation)
        elif (held := self._to_hold(operation)) is not None:
            self._held.append(held)
        else:
            self._go(operation)

    def _go(self, operation: Operation) -> None:
        """Answers an operation, and lets go on what was held until it."""
        self._attempt(self._answer, operation)
        self._happened(operation)
        self._release([held for held in self._held if held.happened])

    def _attempt(self, action: Callable[[Operation], None], operation: Operation) -> None:
        try:
            action(operation)
        except ProcessLookupError:
            return  # the process is gone, and with it the call
        except CannotPerformError:
            operation.let_run()
        except OSError as error:
            # The call itself fails, as it would have without us: its process gets exactly that answer.
            operation.fail(error.errno or errno.EIO)

    @property
    def holds(self) -> bool:
        """Whether any operation is held, so that `release_waiting` must be asked again soon."""
        return bool(self._held)

    def forget(self, rank: int) -> None:
        """This rank has been killed: nothing of it is done any more, what is held least of all."""
        self._dead.add(rank)
        self._held = [held for held in self._held if held.operation.rank != rank]

    def release_waiting(self) -> None:
        """Lets go on what all other ranks wait for. A patient kill comes first: a rank that is held has gone as far as it can."""
        if self._held and self._actions.others_wait():
            self._release(sorted(self._held, key=lambda held: held.fault is not None)[:1])

    def _to_hold(self, operation: Operation) -> _Held | None:
        found = None
        names = [name for name in operation.names if name is not None]
        for index, fault in enumerate(self._plan.live):
            if not isinstance(fault, HoldFault):
                continue
            if not fault.who.covers(operation.rank) or not fault.point.matches(operation.call.operation, names):
                continue
            self._seen[index, operation.rank] += 1
            already = self._seen[-1 - index, fault.until_rank] >= fault.until.occurrence
            if self._seen[index, operation.rank] != fault.point.occurrence:
                continue
            # Where the other rank went first by itself, the order that is asked for is there already.
            self._actions.fired(fault, operation.rank, operation=operation.call.operation, path=names[-1], held=not already)
            if not already:
                found = _Held(operation, fault)
        if found is None and (operation.rank == self._last_rank or self._patient_kill(operation, names)):
            found = _Held(operation, None)
        return found

    def _patient_kill(self, operation: Operation, names: list[str]) -> bool:
        for index, fault in enumerate(self._plan.live):
            if (
                not isinstance(fault, _Killing)
                or not fault.patient
                or index in self._spent
                or not fault.triggered_by(operation.rank)
            ):
                continue
            point = fault.point
            here = isinstance(point, OperationPoint) and point.matches(operation.call.operation, names)
            if here and isinstance(point, OperationPoint) and self._seen[index, operation.rank] + 1 == point.occurrence:
                return True
        return False

    def _release(self, ready: list[_Held]) -> None:
        for held in ready:
            if held not in self._held:
                continue  # what was released just before has released it, or has killed its rank
            self._held.remove(held)
            if held.fault is not None:
                why = f"rank {held.fault.until_rank} went first" if held.happened else "all other ranks were waiting for it"
                self._actions.released(held.fault, held.operation.rank, why)
            self._go(held.operation)

    def _happened(self, operation: Operation) -> None:
        """Counts what a hold may wait for, once it is done and not when it is asked for: it may be held itself until then."""
        names = [name for name in operation.names if name is not None]
        for index, fault in enumerate(self._plan.live):
            mine = isinstance(fault, HoldFault) and operation.rank == fault.until_rank
            if mine and isinstance(fault, HoldFault) and fault.until.matches(operation.call.operation, names):
                self._seen[-1 - index, operation.rank] += 1
        for held in self._held:
            if held.fault is not None:
                index = self._plan.live.index(held.fault)
                held.happened = self._seen[-1 - index, held.fault.until_rank] >= held.fault.until.occurrence

    def _answer(self, operation: Operation) -> None:
        index, fault = self._armed(operation)
        self._record(operation, fault)
        if fault is None:
            self._unfaulted(operation)
        elif isinstance(fault, ErrnoFault):
            self._fail(fault, operation)
        else:
            self._spent.add(index)
            self._signal(fault, operation)

    def _armed(self, operation: Operation) -> tuple[int, Armed | None]:
        chosen: tuple[int, Armed | None] = (-1, None)
        names = [name for name in operation.names if name is not None]
        for index, fault in enumerate(self._plan.live):
            if isinstance(fault, HoldFault):
                continue
            point = fault.point
            if not isinstance(point, OperationPoint) or not point.matches(operation.call.operation, names):
                continue
            if not (fault.triggered_by(operation.rank) if isinstance(fault, _Killing) else fault.who.covers(operation.rank)):
                continue
            if isinstance(fault, ErrnoFault) and operation.call.name == "sync":
                continue  # sync(2) reports no error, so nobody would learn of one
            self._seen[index, operation.rank] += 1
            if not self._due(index, fault, point, operation.rank):
                continue
            if chosen[1] is None:
                chosen = (index, fault)
            else:
                self._actions.eclipsed(fault, chosen[1], operation.rank)
        return chosen

    def _due(self, index: int, fault: Armed, point: OperationPoint, rank: int) -> bool:
        count = self._seen[index, rank]
        if index in self._spent or count < point.occurrence:
            return False
        if isinstance(fault, _Killing):
            return count == point.occurrence
        if fault.who.quantifier == "any" and self._bound.setdefault(index, rank) != rank:
            return False
        return fault.times == 0 or count < point.occurrence + fault.times

    def _record(self, operation: Operation, fault: object) -> None:
        self._number += 1
        names = [name if name is not None else path for name, path in zip(operation.names, operation.paths, strict=True)]
        self._log.write(
            "operation",
            n=self._number,
            rank=operation.rank,
            pid=operation.pid,
            operation=operation.call.operation,
            call=operation.call.name,
            path=names[0],
            to=names[1] if len(names) > 1 else None,
            size_bytes=operation.size_bytes,
            tampered=None if fault is None else str(fault),
        )

    def _unfaulted(self, operation: Operation) -> None:
        small = self._plan.disk
        grows = operation.call.operation == "write" or operation.call.name == "fallocate"
        if small is None or not grows:
            self._proceed(operation)
        elif small.effect == "quota":
            self._keep_quota(small, operation)
        else:
            # The answer is the kernel's own; that it must be "no" is known beforehand.
            if operation.size_bytes > disk.room_bytes(f"/proc/{operation.pid}/root{self._root}"):
                self._disk_is_full(small, operation)
            self._proceed(operation)

    def _proceed(self, operation: Operation) -> None:
        if self._recorder is None:
            proceed(operation)
        else:
            self._recorder.proceed(operation, self._number)

    def _perform(self, operation: Operation, limit_bytes: int | None = None) -> int:
        if self._recorder is None:
            return perform(operation, limit_bytes)
        return self._recorder.perform(operation, self._number, limit_bytes)

    def _keep_quota(self, small: DiskFault, operation: Operation) -> None:
        room = max(0, small.size_bytes - disk.used_bytes(self._root))
        landed, number = disk.no_space(operation.size_bytes, room)
        if landed == operation.size_bytes:
            self._proceed(operation)
            return
        self._disk_is_full(small, operation)
        if number or not operation.call.data:
            operation.fail(errno.ENOSPC)
        else:
            operation.give(self._perform(operation, landed))

    def _disk_is_full(self, small: DiskFault, operation: Operation) -> None:
        if not self._disk_fired:
            self._disk_fired = True
            self._fired(small, operation)

    def _fail(self, fault: ErrnoFault, operation: Operation) -> None:
        if fault.errno_name:
            self._fired(fault, operation)
            operation.fail(getattr(errno, fault.errno_name))
            return
        position = fault.point.position
        assert position is not None
        # A disk that writes nothing says so with an error; a share of a few bytes is at least one, or a retry would spin.
        least = 1 if position.percent else 0
        landed = self._perform(operation, max(least, position.of(operation.size_bytes)))
        self._fired(fault, operation, bytes_landed=landed)
        operation.give(landed)

    def _signal(self, fault: SignalFault | PowerCutFault, operation: Operation) -> None:
        point = fault.point
        assert isinstance(point, OperationPoint)
        victims = fault.victims(self._plan.world_size, operation.rank)
        number = SIGNALS[fault.signal]
        dies = operation.rank in victims and number == signal.SIGKILL
        result: int | None = None
        if point.moment == "after" or (point.moment == "during" and dies):
            limit = None if point.position is None else point.position.of(operation.size_bytes)
            result = self._perform(operation, limit)
        self._fired(fault, operation, bytes_landed=result if operation.call.operation == "write" else None)
        self._actions.signal_ranks(victims, number, "fault")
        if dies or (operation.rank in victims and number == signal.SIGSTOP):
            return  # unanswered: a dead rank needs no answer, a stopped one must not get past this call
        if result is None:
            self._proceed(operation)
        else:
            operation.give(result)

    def _fired(self, fault: object, operation: Operation, **facts: Any) -> None:
        path = operation.names[-1] or operation.paths[-1]
        self._actions.fired(
            fault,
            operation.rank,
            operation=operation.call.operation,
            call=operation.call.name,
            path=path,
            n=self._number,
            **facts,
        )

    def _follow_log(self, rank: int, operation: Operation) -> None:
        if operation.call.operation != "write":
            proceed(operation)
            return
        self._follow(rank, _records(operation.read_data(_LOG_LINE_BYTES)), operation)

    def _follow_text(self, operation: Operation) -> None:
        if operation.call.operation != "write":
            proceed(operation)
            return
        records = self._texts[operation.resolved[0]].read(operation.resolved[0], operation.read_data(_LOG_LINE_BYTES))
        if not records:
            operation.let_run()
            return
        self._actions.seen(max(0, operation.rank), operation.pid)
        for rank in range(1, self._plan.world_size):
            for record in records:
                self._mark(rank, record)
        self._follow(0, records, operation)

    def _follow(self, rank: int, records: list[dict[str, Any]], operation: Operation) -> None:
        """Notes what a rank is about to say; a fault that comes at this step comes now."""
        # Noting may take as long as it needs: the rank waits.
        for record in records:
            self._mark(rank, record)
            self._actions.noted(rank, record)
        fault = self._step_fault(rank, records)
        if fault is None:
            proceed(operation)
            return
        landed = perform(operation)
        self._actions.fired(fault, rank, operation="step", step=records[-1].get("step"))
        victims = fault.victims(self._plan.world_size, rank)
        number = SIGNALS[fault.signal]
        self._actions.signal_ranks(victims, number, "fault")
        if rank not in victims or number == signal.SIGTERM:
            operation.give(landed)

    def _mark(self, rank: int, record: dict[str, Any]) -> None:
        said = {key: record.get(key) for key in ("moment", "step", "checkpoint")}
        self._log.write("mark", rank=rank, what=record.get("event"), **said)

    def _step_fault(self, rank: int, records: list[dict[str, Any]]) -> SignalFault | PowerCutFault | None:
        steps = {record.get("step") for record in records if record.get("event") == "batch" and record.get("tag") == "STEP"}
        for index, fault in enumerate(self._plan.live):
            if not isinstance(fault, _Killing) or not isinstance(fault.point, StepPoint) or fault.point.step not in steps:
                continue
            if index not in self._spent and fault.triggered_by(rank):
                self._spent.add(index)
                return fault
        return None


def _records(data: bytes) -> list[dict[str, Any]]:
    found = []
    for line in data.split(b"\n"):
        try:
            record = json.loads(line) if line else None
        except ValueError:
            continue  # not a line of ours; the reader of the log reports it
        if isinstance(record, dict):
            found.append(record)
    return found


def needs_reads(plan: AttemptPlan) -> tuple[bool, bool]:
    """Whether the filter must trap reads, and opens that only read: only where a fault speaks of them."""
    points = [fault.point for fault in plan.live] + [fault.until for fault in plan.live if isinstance(fault, HoldFault)]
    operations = {point.operation for point in points if isinstance(point, OperationPoint)}
    return "read" in operations, bool(operations & {"open", "read"})
