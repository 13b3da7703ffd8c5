"""Runs the attempts of a plan: arms, launches, waits, restarts. The only restart logic of the harness.

Responsible for: one attempt after the other until the job is done, refuses, or fails without cause; every wait has a
deadline; everything that is done and seen is written to the run directory as it happens.
Not responsible for: judging any of it. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import checkpoint_files, crash, seal, tree
from harness.crash_states import survivors_found
from harness.errors import CapabilityError, LaunchError
from harness.fault import PowerCutFault, SignalFault
from harness.inject import damage, power
from harness.inject.arming import Injector, needs_reads
from harness.inject.gate import Gate
from harness.inject.loss_log import STANDARD, LossLog, reached_before
from harness.inject.operation import Operation
from harness.inject.process import descendants, works
from harness.inject.recorder import Recorder
from harness.launch.command import fill, launch_spec
from harness.launch.connection import Connection, Launcher
from harness.launch.exits import Exit, classify
from harness.launch.ports import reserved_port
from harness.plan import AttemptPlan, Plan
from harness.scenario import Command
from harness.store import RecordWriter, RunDirectory, read_records
from harness.trace import Trace, read_trace

# After one rank has died, the others notice by their broken connections; a launcher would end them at once. They get
# this long to end by themselves, so that what they do meanwhile (commit a checkpoint, say) is seen.
PEER_GRACE_S = 10.0
# A foreign job may wait for a rank that hangs as long as its collectives do, half an hour where nobody has said otherwise; the
# harness stands for whoever watches over it, and ends it.
WATCH_GRACE_S = 12.0
# After a rank has logged `end`, it has this long to exit.
EXIT_GRACE_S = 10.0
# The keeper has answered everything and is about to say `done`.
_DONE_GRACE_S = 30.0
# While an operation is held, the other ranks are looked at so often; they wait for it if they did nothing at so many looks.
_LOOK_S = 0.005
_IDLE_LOOKS = 4
# A directory up to this size is compared with its trace before a real power cut: reading it takes half a second, in which the
# file system writes little by itself.
_COMPARED_BYTES = 256 << 20


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: `done` if every process exited with code 0."""

    done: bool
    disturbed: bool  # a fault was planned for the running processes, so that a failure has a cause


@dataclass(frozen=True)
class Recording:
    """That an attempt is recorded operation by operation, with its data.

    Attributes:
        last_rank: a rank whose every operation waits until the others can go on no further without it; None for no such rank.
    """

    last_rank: int | None = None


def run_attempts(
    plan: Plan, directory: RunDirectory, launcher: Launcher, first: int = 0, recording: Recording | None = None
) -> None:
    """Launches attempt after attempt until the job is done, or fails with no fault of its own to blame.

    Args:
        plan: of the case.
        directory: its run directory.
        launcher: how ranks are started.
        first: the attempt to begin with; what came before it is in the directory already.
        recording: whether to record the first of these attempts; one whose faults need it is recorded in any case.

    Raises:
        CapabilityError: this machine cannot do what the plan needs.
        LaunchError: no process could be started.
    """
    for attempt in plan.attempts[first:]:
        folder = directory.attempt(attempt.index)
        folder.mkdir()
        outcome = AttemptRunner(plan, attempt, directory, launcher, recording if attempt.index == first else None).run()
        if outcome.done or not outcome.disturbed:
            return


@dataclass
class _Process:
    """A rank, or a launcher that makes ranks (rank -1)."""

    pid: int
    pidfd: int
    sent: dict[int, str] = field(default_factory=dict)
    end: Exit | None = None
    finished: bool = False  # it has logged `end`
    stopped: bool = False


class AttemptRunner:
    """One launch of all ranks, from the damage before it to the last process gone."""

    def __init__(
        self, plan: Plan, attempt: AttemptPlan, directory: RunDirectory, launcher: Launcher, recording: Recording | None = None
    ) -> None:
        self._plan, self._attempt, self._directory, self._launcher = plan, attempt, directory, launcher
        self._folder = directory.attempt(attempt.index)
        self._root = directory.checkpoints.resolve()
        self._log = RecordWriter(self._folder / "attempt.jsonl")
        self._operations = RecordWriter(self._folder / "operations.jsonl")
        logs = {str(self._folder.resolve() / f"rank-{rank}.jsonl"): rank for rank in range(attempt.world_size)}
        self._recording = recording or (Recording() if attempt.traced else None)
        self._recorder: Recorder | None = None
        self._logs = logs
        self._loss_log, self._texts = self._make_loss_log()
        unnamed_rank = 0 if attempt.world_size == 1 else -1
        self._gate = Gate(str(self._root), logs, self._decide, unnamed_rank, frozenset(self._texts))
        self._injector: Injector | None = None
        self._looks: tuple[int, int] = (0, 0)  # notifications at the last look, looks since then at which nobody worked
        self._poll = select.poll()
        self._processes: dict[int, _Process] = {}
        self._timers: dict[str, float] = {}
        self._refused: CapabilityError | None = None
        cut = attempt.power_cut
        full = attempt.disk is not None and attempt.disk.effect == "full-disk"
        self._disk_kind = "tmpfs" if full else cut.filesystem if cut is not None else ""  # of the attempt's own disk
        self._done = False
        self._peer_died = False
        self._cut = False
        self._last_look = 0.0
        self._out_of_patience = False

    def run(self) -> Outcome:
        """Runs the attempt. Raises: CapabilityError, LaunchError."""
        started = time.monotonic()
        attempt = self._attempt
        self._damage()
        if self._recording is not None:
            self._recorder = Recorder(self._folder, self._operations)
            if not self._disk_kind:
                self._recorder.begin(self._root)
        last_rank = self._recording.last_rank if self._recording else None
        self._injector = Injector(attempt, self._root, self._logs, self, self._operations, self._recorder, last_rank, self._texts)
        self._log.write("files", moment="begin", **checkpoint_files.listing(self._directory, self._root))
        launch, faults = self._plan.scenario.launch, list(map(str, attempt.faults))
        self._log.write(
            "launched", index=attempt.index, world_size=attempt.world_size, launch=launch, faults=faults, log=seal.VERSION
        )
        connection = self._launcher.connect()
        try:
            with reserved_port() as port:
                self._serve(connection, started, port)
        finally:
            connection.close()
            self._gate.close()
            self._close_processes()
            if self._recorder:
                self._recorder.close()
        if self._refused:
            raise self._refused
        for text in self._gate.escapes:
            self._log.write("escaped", what=text)
        if damage.marker_of(self._root).exists():
            self._log.write("executed", path=damage.marker_of(self._root).name)
        if self._recording is not None:
            # What a process writes into its own working directory (the attempt's folder) and devices is not worth a word.
            own = (str(self._folder.resolve()), "/dev/", "/proc/", "/sys/")
            self._log.write("outside", paths=[path for path in self._gate.outside if not path.startswith(own)][:20])
        self._lose_power()
        self._log.write("files", moment="end", **checkpoint_files.listing(self._directory, self._root))
        ends = [process.end for process in self._processes.values() if process.end]
        done = bool(ends) and all(end.kind == "exited" and end.code == 0 for end in ends) and not self._left_when_asked()
        if self._loss_log is not None:
            self._loss_log.end(done, reached_before(list(self._directory.attempts())[: attempt.index]))
        self._operations.close()
        sealed = seal.seal_of(self._folder)
        self._log.write("ended", duration_s=time.monotonic() - started, outcome="done" if done else "failed", sealed=sealed)
        self._log.close()
        return Outcome(done, disturbed=bool(attempt.live or attempt.disk))

    def _left_when_asked(self) -> bool:
        """Whether a rank was asked to end, and left with exit code 0 before its work was done; it is started again."""
        ranks = [process for rank, process in self._processes.items() if rank >= 0]
        asked = any(isinstance(fault, SignalFault) and fault.signal == "sigterm" for fault in self._attempt.live)
        return asked and any(not process.finished for process in ranks)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _serve(self, connection: Connection, started: float, port: int) -> None:
        reads, read_opens = needs_reads(self._attempt)
        disk = self._attempt.disk
        attempt = self._attempt
        spec = launch_spec(self._plan, attempt.index, attempt.world_size, self._folder, self._root, os.getpid(), port)
        spec = replace(
            spec,
            reads=reads,
            read_opens=read_opens,
            output=self._loss_log is not None,
            disk_path=str(self._root) if self._disk_kind else "",
            disk_kind=self._disk_kind,
            disk_bytes=disk.size_bytes if disk is not None else 0,
        )
        connection.launch(spec)
        self._timers["deadline"] = started + self._plan.scenario.deadline_s
        self._poll.register(connection.fileno(), select.POLLIN)
        while not self._done:
            for fd, events in self._poll.poll(self._wait_ms()):
                if fd == connection.fileno():
                    self._hear(connection)
                elif events & select.POLLIN and fd in self._gate:
                    self._gate.handle(fd)
                elif fd in self._gate:
                    self._poll.unregister(fd)
                    self._gate.remove(fd)
            if self._injector is not None and self._injector.holds:
                self._look()
            self._check_time(connection)

    def _decide(self, operation: Operation) -> None:
        assert self._injector is not None
        self._injector.decide(operation)

    def _look(self) -> None:
        """Looks whether the ranks of which nothing is held still work; lets go on what they can only be waiting for."""
        assert self._injector is not None
        count, looks = self._looks
        if count != self._gate.num_notifications:
            self._looks = (self._gate.num_notifications, 0)
            self._last_look = time.monotonic()
        elif time.monotonic() - self._last_look >= _LOOK_S:
            self._last_look = time.monotonic()
            self._looks = (count, looks + 1)
        self._injector.release_waiting()

    def _wait_ms(self) -> int:
        left = min(self._timers.values()) - time.monotonic()
        if self._injector is not None and self._injector.holds:
            left = min(left, _LOOK_S)
        return max(0, int(left * 1000) + 1)

    def _hear(self, connection: Connection) -> None:
        message, fds = connection.receive()
        if message is None:
            if not self._refused and any(process.end is None for process in self._processes.values()):
                raise LaunchError(f"the keeper of attempt {self._attempt.index} ended without a word; see {self._folder}")
            if not self._processes and not self._refused:
                raise LaunchError(f"the keeper of attempt {self._attempt.index} could not start any process; see {self._folder}")
            self._done = True
            return
        event = message["event"]
        if event == "gate":
            self._gate.add(fds[0], message["rank"])
            self._poll.register(fds[0], select.POLLIN)
        elif event == "started":
            self._started(message["rank"], message["pid"])
        elif event == "exited":
            self._exited(message)
        elif event == "disk":
            self._log.write("disk", how=message["how"], kind=message["kind"])
            if self._recorder is not None:  # what the ranks do meanwhile waits at the gate
                self._recorder.begin(self._seen_by(message["pid"]))
        elif event == "refused":
            self._refused = _refusal(message)
            connection.kill_tree()
        elif event == "done":
            self._ended(message)

    def _started(self, rank: int, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            pidfd = -1  # it has ended already; its exit is on the way
        self._processes[rank] = _Process(pid, pidfd)
        self._log.write("started", rank=rank, pid=pid)

    def _exited(self, message: dict[str, Any]) -> None:
        process = self._processes[message["rank"]]
        if self._out_of_patience:
            # The keeper has killed the whole tree for us, perhaps before we had heard that this process had started.
            process.sent.setdefault(signal.SIGKILL, "deadline")
        end = process.end = classify(message["status"], process.sent)
        self._log.write(
            "exited",
            rank=message["rank"],
            code=end.code,
            signal=end.signal_name,
            kind=end.kind,
            max_memory_kib=message["max_memory_kib"],
            cpu_s=message["cpu_s"],
        )
        if (end.kind != "exited" or end.code != 0) and not self._peer_died:
            self._peer_died = True
            self._timers["peers"] = time.monotonic() + PEER_GRACE_S
        self._timers.pop(f"exit {message['rank']}", None)
        if message["rank"] == -1:
            # The launcher has waited for its ranks; how they ended is its secret.
            for rank, other in self._processes.items():
                other.end = other.end or end
                self._timers.pop(f"exit {rank}", None)

    def _ended(self, message: dict[str, Any]) -> None:
        shared = _shared_memory([process.pid for process in self._processes.values()])
        if message["leftover"] or shared:
            self._log.write("leftover", processes=message["leftover"], shared_memory=shared, mounts=[])
        if message["error"]:
            raise LaunchError(message["error"])
        self._done = True

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _check_time(self, connection: Connection) -> None:
        """Ends what has waited too long. Each reason is written down, so that the judge can tell a hang from an exit."""
        now = time.monotonic()
        running = {rank: process for rank, process in self._processes.items() if process.end is None}
        if running and all(process.stopped for process in running.values()):
            # Nobody is left who could be waiting for the stopped ones.
            self.signal_ranks(list(running), signal.SIGKILL, "stopped")
        for name in [name for name, at in self._timers.items() if at <= now]:
            del self._timers[name]
            if name == "deadline":
                self._end_of_patience(connection, running)
            elif name == "watch":
                self.signal_ranks(list(running), signal.SIGKILL, "stopped")
            elif name == "peers":
                self.signal_ranks([rank for rank in running if not running[rank].stopped], signal.SIGKILL, "peer-died")
            else:
                self.signal_ranks([int(name.split()[1])], signal.SIGKILL, "finished")

    def _end_of_patience(self, connection: Connection, running: dict[int, _Process]) -> None:
        if self._out_of_patience:
            raise LaunchError(f"attempt {self._attempt.index} does not end although everything was killed; see {self._folder}")
        self._out_of_patience = True
        self._timers["deadline"] = time.monotonic() + _DONE_GRACE_S
        for rank, process in running.items():
            why = "stopped" if process.stopped else "finished" if process.finished else "deadline"
            self.signal_ranks([rank], signal.SIGKILL, why)
        connection.kill_tree()

    # -- what the injector asks for (harness.inject.arming.Actions) -----------------------------------------------------

    def signal_ranks(self, ranks: Sequence[int], number: signal.Signals, why: str) -> None:
        """Sends a signal to these ranks; all ranks at once includes their launcher, as when a machine dies."""
        targets = list(ranks)
        if -1 in self._processes and len(set(ranks)) >= self._attempt.world_size:
            targets.insert(0, -1)
        for rank in targets:
            process = self._processes.get(rank)
            if process is None or process.end is not None or process.pidfd < 0:
                continue
            process.sent.setdefault(number, why)
            if number == signal.SIGKILL and self._injector is not None:
                self._injector.forget(rank)
            if number == signal.SIGSTOP:
                process.stopped = True
                if isinstance(self._plan.scenario.workload, Command):
                    self._timers.setdefault("watch", time.monotonic() + WATCH_GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process.pidfd, number)
            self._log.write("killed", rank=rank, signal=number.name, why=why)

    def fired(self, fault: object, rank: int, **facts: Any) -> None:
        """Writes down that a fault has fired, before its effect can be seen; the power of a real disk is cut here."""
        self._log.write("fired", fault=str(fault), rank=rank, attempt=self._attempt.index, **facts)
        if isinstance(fault, PowerCutFault):
            self._cut = True
            if fault.filesystem:
                self._cut_power(fault)

    def released(self, fault: object, rank: int, why: str) -> None:
        """Writes down that a held operation goes on, and why."""
        self._log.write("released", fault=str(fault), rank=rank, why=why)

    def others_wait(self) -> bool:
        """Whether no process of the attempt has worked at several looks in a row, with nothing asked of the gate meanwhile.

        All processes: the others may wait for another thread of the rank that is held, and a rank that a launcher has made is
        not known as one before it first touches the checkpoint directory.
        """
        known = [process.pid for process in self._processes.values() if process.end is None]
        # Finding the descendants takes a look at every process of the machine: not more often than needed.
        far = -1 in self._processes or self._looks[1] >= _IDLE_LOOKS
        busy = any(map(works, known)) or (far and any(works(pid) for of in known for pid in descendants(of)))
        # A process whose call has come to the gate sleeps; that was unheard of a moment ago.
        if busy or self._poll.poll(0):
            self._looks = (self._looks[0], 0)
        return self._looks[1] >= _IDLE_LOOKS

    def eclipsed(self, fault: object, by: object, rank: int) -> None:
        """Writes down why a fault that was due did not fire."""
        self._log.write("eclipsed", fault=str(fault), by=str(by), rank=rank)

    def seen(self, rank: int, pid: int) -> None:
        """Learns which process a rank is, where a launcher has made it."""
        if rank >= 0 and rank not in self._processes:
            self._started(rank, pid)

    def noted(self, rank: int, record: dict[str, Any]) -> None:
        """Follows a rank's event log; the rank waits meanwhile."""
        event = record.get("event")
        if event == "end" and rank in self._processes:
            self._processes[rank].finished = True
            self._timers[f"exit {rank}"] = time.monotonic() + EXIT_GRACE_S
        elif event == "save" and record.get("moment") == "end" and rank == 0:
            self._committed(record)

    def process_id(self, rank: int) -> int:
        """The process of a rank. Raises: KeyError if it has not started."""
        return self._processes[rank].pid

    def _committed(self, record: dict[str, Any]) -> None:
        root, name = self._living_root(), str(record["checkpoint"])
        # Of a job that is watched from inside all that was written between two batches is one save.
        names = [one for one in (name, *map(str, record.get("also", ()))) if not self._is_pointer(root, one)]
        if not names:
            return  # written alone, it commits nothing that was not there before
        files = {path: content for one in names for path, content in checkpoint_files.snapshot(root, one).items()}
        known = {key: record[key] for key in ("batch", "background") if key in record}
        self._log.write("committed", step=record["step"], checkpoint=name, files=files, **known)

    def _is_pointer(self, root: Path, name: str) -> bool:
        return isinstance(self._plan.scenario.workload, Command) and checkpoint_files.is_pointer(root, name)

    def _make_loss_log(self) -> tuple[LossLog | None, dict[str, LossLog]]:
        """The reader of what the trainer says of its losses, and the files that it says it in."""
        workload, attempt = self._plan.scenario.workload, self._attempt
        if not isinstance(workload, Command) or not workload.loss_log or not workload.loss_regex:
            return None, {}
        golden = self._directory.golden if self._directory.golden.is_dir() else None
        log = LossLog(workload.loss_regex, self._folder, attempt.world_size, golden)
        if workload.loss_log == STANDARD:
            names = [f"{who}.{stream}" for who in ("launcher", "rank-0") for stream in ("stdout", "stderr")]
            return log, {str(self._folder.resolve() / name): log for name in names}
        path = fill(workload.loss_log, {"ckpt": str(self._root), "world_size": str(attempt.world_size)})
        return log, {os.path.realpath(Path(workload.directory or self._folder, path)): log}

    # -- before and after ---------------------------------------------------------------------------------------------

    def _seen_by(self, pid: int) -> Path:
        """The checkpoint directory as a process of the attempt sees it, which may have mounted a disk there."""
        return Path(f"/proc/{pid}/root{self._root}") if self._disk_kind else self._root

    def _living_root(self) -> Path:
        """The same as the ranks see it that are alive now."""
        return self._seen_by(next((process.pid for process in self._processes.values() if process.end is None), os.getpid()))

    def _cut_power(self, fault: PowerCutFault) -> None:
        """Stops a real disk before the ranks are killed: what they would still do, or their end, must not reach it."""
        root = self._living_root()
        model, trace = self._modelled()
        if sum(p.size_bytes for entry in model.everything().values() for p in entry.pieces) <= _COMPARED_BYTES:
            self._compare(model, trace, root)
        try:
            power.cut(root, fault.filesystem)
        except OSError as error:
            raise LaunchError(f"the power of the real disk could not be cut: {error}; expected a shutdown as root") from error

    def _lose_power(self) -> None:
        """Takes from the directory what the planned power cut takes, if it has fired, or says what a real one has taken."""
        cut = self._attempt.power_cut
        if self._recording is None:
            return
        model, trace = self._modelled()
        if cut is None or not cut.filesystem or not self._cut:
            self._compare(model, trace, self._root)
        if cut is None or not self._cut:
            return
        if cut.survivors is not None:
            tree.build(model.after_power_loss(cut.survivors), trace.data, self._root)
            return
        found = survivors_found(model, self._root, trace.data)
        lost = tree.differing(model.everything(), self._root, trace.data)
        self._log.write("power", filesystem=cut.filesystem, survivors=None if found is None else str(found), lost=lost)

    def _modelled(self) -> tuple[crash.Model, Trace]:
        """What was traced so far, and the directory as it makes it."""
        records, _ = read_records(self._folder / "operations.jsonl")
        trace = read_trace(self._folder, records)
        model = crash.Model.of(trace)
        model.run(trace.operations)
        return model, trace

    def _compare(self, model: crash.Model, trace: Trace, root: Path) -> None:
        """Writes down what was written past the trace."""
        for text in trace.problems:
            self._log.write("escaped", what=text)
        unseen = tree.difference(model.everything(), root, trace.data)
        if unseen:
            self._log.write("escaped", what=unseen)

    def _damage(self) -> None:
        before = checkpoint_files.snapshot(self._root)
        done = [(fault, damage.apply(fault, self._root)) for fault in self._attempt.damage]
        after = checkpoint_files.snapshot(self._root)
        for fault, hit in done:
            # Two flips of one bit, or a cut at the full length, damage nothing: only the outcome of all together counts.
            changed = [item for item in hit if before.get(item.path) != after.get(item.path)]
            for item in hit:
                self._log.write(
                    "damaged",
                    fault=str(fault),
                    path=item.path,
                    checkpoint=item.entry.name,
                    step=item.entry.number,
                    size_before=item.size_before,
                    size_after=item.size_after,
                    unchanged=item not in changed,
                )
            if changed:
                self.fired(fault, -1, operation="damage", path=", ".join(item.path for item in changed))

    def _close_processes(self) -> None:
        for process in self._processes.values():
            if process.pidfd >= 0:
                os.close(process.pidfd)
                process.pidfd = -1


def _refusal(message: dict[str, Any]) -> CapabilityError:
    if message["what"] == "disk" and message["kind"] != "tmpfs":
        return power.refusal(message["kind"], message["error"])
    if message["what"] == "disk":
        return CapabilityError(
            f"mounting a small file system was refused ({message['error']})",
            "fill a real disk",
            "Run as root or allow user namespaces; or use `quota N bytes`, which the gate keeps by itself.",
        )
    return CapabilityError(
        f"seccomp user notification was refused ({message['error']})",
        "stop system calls of a training process",
        "It needs Linux 5.19 or newer, no gVisor, and a container profile that allows seccomp(2).",
    )


def _shared_memory(pids: list[int]) -> list[str]:
    """Shared-memory segments that carry the number of one of these processes, as torch names its own."""
    folder = Path("/dev/shm")  # noqa: S108 - it is looked at, not written to
    if not folder.is_dir():
        return []
    marks = [f"_{pid}_" for pid in pids]
    return sorted(path.name for path in folder.iterdir() if any(mark in path.name for mark in marks))
