"""Measures this machine in one run, and prints ratios.

Responsible for: the figures of `harness bench`. Each is measured here and now, beside the thing that it is compared with;
none is asserted anywhere, since shared machines drift.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from harness import baseline, kinds, symptoms
from harness.bench_crash import exploration_figures, trace_figures
from harness.bench_probe import probe_figures
from harness.case import Workbench, run_case
from harness.errors import HarnessError, UsageError
from harness.inject import process
from harness.inject.arming import Injector
from harness.inject.gate import Gate
from harness.inject.install import install
from harness.interval import whole_number
from harness.launch.connection import Launcher
from harness.oracle.verdict import Verdict
from harness.plan import make_plan, versions
from harness.reference.defects import DEFECTS
from harness.scenario import Scenario, job
from harness.session import Session
from harness.store import RecordWriter, RunDirectory
from harness.supervisor import AttemptRunner
from harness.workers import run_all

SCHEMA = "harness.bench/1"
_WRITES = 5_000
_WRITE_BYTES = 100
_SHOWN_FINDINGS = 3
_SAID_EVERY = 25
_SAVES_DEADLINE_S = 600.0
_MAX_CASES = 10_000
_MAX_STATES = 1_000_000
_MAX_WIDTH = 8192
_WRITER = (
    "import os, sys, time\n"
    "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o644)\n"
    f"data, n = bytes({_WRITE_BYTES}), int(sys.argv[2])\n"
    "start = time.perf_counter()\n"
    "for _ in range(n): os.write(fd, data)\n"
    "print((time.perf_counter() - start) / n * 1e6)\n"
)

Figures = dict[str, Any]
Say = Callable[[str], None]
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes:
        cases: warm cases to time.
        cold_cases: cases through torchrun to time.
        save_width: width of the model whose saves are timed.
        states: crash states to explore; None for all of a save.
    """

    cases: int
    cold_cases: int
    save_width: int
    states: int | None

    @classmethod
    def parse(cls, cases: str, cold_cases: str, save_width: str, states: str | None, problems: Sequence[str] = ()) -> Request:
        """Reads the options as they were typed. Raises: UsageError with everything that is wrong with them, `problems` first."""
        found = list(problems)
        width = whole_number("--save-width", save_width, _MAX_WIDTH, found, least=8)
        if width % 4:
            found.append(f"--save-width: found {save_width!r}; expected a multiple of 4 (the attention heads)")
        request = cls(
            cases=whole_number("--cases", cases, _MAX_CASES, found),
            cold_cases=whole_number("--cold-cases", cold_cases, _MAX_CASES, found),
            save_width=width,
            states=None if states is None else whole_number("--states", states, _MAX_STATES, found),
        )
        if found:
            raise UsageError(found)
        return request


def measure(num_warm: int, num_cold: int, save_width: int, num_states: int | None, say: Say) -> Figures:
    """Takes all figures.

    Args:
        num_warm: warm cases to time.
        num_cold: cases through torchrun to time.
        save_width: width of the model whose saves are timed.
        num_states: crash states to explore; None for all of a save.
        say: is told what is being measured.

    Returns:
        The figures by name; `None` where this machine cannot take one.

    Raises:
        HarnessError: a case did not pass, so its time means nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-bench-"))
    session = Session.new()
    try:
        bench = Workbench(folder / "runs", folder / "baselines", session.warm())
        figures: Figures = {"machine": machine(), "versions": versions()}
        say("cost of a stopped write")
        figures |= write_costs(folder)
        say(f"{num_warm} crash-and-resume cases, warm")
        warm_s = case_seconds(bench, "warm", num_warm)
        say(f"{num_cold} crash-and-resume cases through torchrun")
        cold_s = case_seconds(bench, "torchrun", num_cold)
        figures |= {
            "cases_per_min_warm": 60 / warm_s,
            "cases_per_min_cold": 60 / cold_s,
            "warm_over_cold": cold_s / warm_s,
        }
        say("every crash state of a save, and some of them through torchrun")
        figures |= exploration_figures(bench, folder / "exploration", num_states, num_cold)
        say("cost of keeping a trace's data")
        figures |= trace_figures(bench, folder / "trace")
        say("cost of the probe")
        figures |= probe_figures(folder / "probe")
        say("cost of a save")
        figures |= save_costs(folder / "saves", save_width)
        say("memory of a warm rank")
        figures["rank_extra_memory_mb"] = rank_memory_mb(bench)
        return figures
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def to_json(figures: Figures) -> str:
    """The figures as `harness.bench/1`."""
    return json.dumps({"schema": SCHEMA, **figures}, indent=1)


def machine() -> dict[str, Any]:
    """What was measured on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
    }


def crash_and_resume(launch: str) -> Scenario:
    """The case that is timed, on the job that most scenarios use (16 batches, a save after every fourth).

    Two ranks; one dies in the middle of a shard's write in the third save; the job resumes from the second.
    """
    return job(
        "sharded",
        ranks=2,
        launch=launch,
        name=f"bench-{launch}",
        steps=16,
        batches_per_epoch=8,
        keep_last=2,
        faults="sigkill rank 1 during write step-00000012/rank1.bin.tmp at 50%",
    )


def case_seconds(bench: Workbench, launch: str, number: int) -> float:
    """Median seconds of a case whose baseline is cached. Raises: HarnessError if a case does not pass."""
    scenario = crash_and_resume(launch)
    baseline.obtain(scenario, bench.baselines, bench.launcher(baseline.golden_scenario(scenario)))
    times = []
    for _ in range(number):
        started = time.perf_counter()
        verdict, directory = run_case(scenario, bench)
        times.append(time.perf_counter() - started)
        if verdict.outcome != "PASS":
            raise HarnessError(f"the timed case did not pass, so its time means nothing: see `harness judge {directory.path}`")
    return statistics.median(times)


def write_costs(folder: Path) -> Figures:
    """Microseconds of one 100-byte write: plain, through the gate (recorded and answered), and under strace."""
    plain = float(_output([sys.executable, "-c", _WRITER, str(folder / "plain"), str(_WRITES)]))
    gated = _gated_write_us(folder)
    figures: Figures = {"plain_write_us": plain, "gate_write_us": gated, "gate_over_plain": gated / plain}
    strace = shutil.which("strace")
    if strace is None:
        return figures | {"strace_write_us": None, "strace_over_gate": None}
    command = [strace, "-f", "--seccomp-bpf", "-e", "trace=write", "-o", os.devnull, sys.executable, "-c", _WRITER]
    traced = float(_output([*command, str(folder / "traced"), str(_WRITES)]))
    return figures | {"strace_write_us": traced, "strace_over_gate": traced / gated}


def save_costs(folder: Path, width: int) -> Figures:
    """A save of the reference trainer beside a plain write of the same bytes, and how long an asynchronous one blocks.

    Every figure is the median over the rounds, and of each ratio the least and the greatest are said too.
    """
    command = [sys.executable, "-W", "ignore", "-m", "harness.reference.save_costs", str(folder), str(width)]
    seen = json.loads(_output(command, _SAVES_DEADLINE_S))
    return {
        "save_state_mb": seen["state_bytes"] / 1e6,
        "save_sharded_s": statistics.median(seen["sharded_s"]),
        "save_plain_s": statistics.median(seen["plain_s"]),
        **_ratio("sharded_over_plain_write", seen["sharded_s"], seen["plain_s"]),
        "async_blocked_s": statistics.median(seen["async_blocked_s"]),
        **_ratio("async_block_over_sync", seen["async_blocked_s"], seen["dcp_s"]),
    }


def _ratio(name: str, ones: Sequence[float], others: Sequence[float]) -> Figures:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return {name: statistics.median(ratios), f"{name}_range": [min(ratios), max(ratios)]}


def defect_rates(everything: bool, say: Say, jobs: int) -> Figures:
    """Runs every planted defect and the healthy jobs.

    Args:
        everything: all healthy combinations, not only a set in which every two settings meet.
        say: is told each case that did not come out as it must, and from time to time how far this has come.
        jobs: cases at a time.

    Returns:
        `defects`: how many were `planted`, `detected` (the case failed) and `named` (kind and component are right); how many jobs
        were `healthy`, and the `false_alarms` among them.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-bench-"))
    session = Session.new()
    try:
        bench = Workbench(folder / "runs", folder / "baselines", session.warm())
        planted: list[tuple[str | None, Scenario]] = [(name, symptoms.planted(name)) for name in DEFECTS]
        splits = symptoms.OVER_RANKS_IN
        planted += [(name, symptoms.over_ranks(*split, name)) for split in splits for name in symptoms.OVER_RANKS]
        healthy = [*map(symptoms.same_without, DEFECTS), *symptoms.healthy(everything=everything)]
        healthy += [symptoms.over_ranks(*split) for split in splits]
        say(f"{len(planted)} planted defects, {len(healthy)} healthy jobs")
        said = _every(_SAID_EVERY, len(planted) + len(healthy), say)
        wanted = planted + [(None, scenario) for scenario in healthy]
        found: list[tuple[str | None, _Judged]] = []
        for (name, _), outcome in run_all(partial(_judged, bench), wanted, jobs):
            for text in outcome.said:
                say(text)
            found.append((name, said(outcome)))
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)
    rates = {
        "planted": len(planted),
        "detected": sum(outcome.detected for name, outcome in found if name),
        "named": sum(outcome.right for name, outcome in found if name),
        "healthy": len(healthy),
        "false_alarms": sum(not outcome.right for name, outcome in found if not name),
    }
    return {"defects": rates}


def kind_rates(say: Say, folder: Path, jobs: int) -> Figures:
    """Runs the small trainers that have a kind of the reported defects each, and the healthy ones beside them.

    Args:
        say: as of `defect_rates`.
        folder: where the lists of them lie.
        jobs: cases at a time.

    Returns:
        `kinds`, as `defects` of `defect_rates`; `by_kind`, the same for each kind.

    Raises:
        UsageError: there are none in the folder, or a list is wrong.
    """
    cases = kinds.read_kinds(folder)
    # Their `torchrun` is the one beside this interpreter, whether or not its environment was activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    work = Path(tempfile.mkdtemp(prefix="harness-bench-"))
    session = Session.new()
    try:
        bench = Workbench(work / "runs", work / "baselines", session.warm())
        say(f"{len(cases)} cases of {len({case.kind for case in cases})} kinds")
        found = kinds.rates(cases, bench, say, jobs)
    finally:
        session.close()
        shutil.rmtree(work, ignore_errors=True)
    total = {name: sum(counts[name] for counts in found.values()) for name in kinds.COUNTS}
    return {"kinds": total, "by_kind": found}


def _every(number: int, total: int, say: Say) -> Callable[[Outcome], Outcome]:
    """A function that returns what it is given, and after every so many says how far this has come."""
    started, done = time.monotonic(), itertools.count(1)

    def said(outcome: Outcome) -> Outcome:
        if (count := next(done)) % number == 0:
            left_s = (time.monotonic() - started) / count * (total - count)
            say(f"{count} of {total} cases done, about {left_s / 60:.0f} min left")
        return outcome

    return said


@dataclass(frozen=True)
class _Judged:
    """What a case has come to: whether it failed, whether that is what it must, and what is to be said if it is not."""

    detected: bool
    right: bool
    said: tuple[str, ...]


def _judged(bench: Workbench, case: tuple[str | None, Scenario]) -> _Judged:
    """Runs a case: a planted defect by its name, or with none a healthy job. Its files are removed.

    A case without a verdict is a wrong one, and said: hundreds of others follow.
    """
    name, scenario = case
    expected = "PASS" if name is None else f"{DEFECTS[name].kind} of {DEFECTS[name].component}"
    try:
        verdict, directory = run_case(scenario, bench)
    except HarnessError as error:
        return _Judged(False, False, (f"{scenario.name}: expected {expected}, found no verdict: {error}",))
    shutil.rmtree(directory.path)
    if name is None:
        right = verdict.outcome == "PASS"
    else:
        wanted = DEFECTS[name]
        right = verdict.kind == wanted.kind and wanted.component in (verdict.component, verdict.component.partition(".")[0])
    said = () if right else (f"{scenario.name}: expected {expected}, {_found(verdict)}",)
    return _Judged(verdict.outcome == "FAIL", right, said)


def _found(verdict: Verdict) -> str:
    """What a case has come to, and what is needed to see why: the directory itself is gone."""
    faults = "; ".join(one.fault for one in verdict.fired) or "none"
    if verdict.root is None:
        return f"found {verdict.outcome} (faults fired: {faults})"
    said = "; ".join(
        f"{finding.kind} of {finding.component}: {finding.message}" for finding in verdict.findings[:_SHOWN_FINDINGS]
    )
    more = len(verdict.findings) - _SHOWN_FINDINGS
    rest = f"; and {more} more" if more > 0 else ""
    return f"found {verdict.outcome} {verdict.kind} of {verdict.component} (faults fired: {faults}): {said}{rest}"


def _output(command: list[str], deadline_s: float = 120.0) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=deadline_s).stdout


class _Ignore:
    """The supervisor of the write benchmark, where no fault is armed."""

    def signal_ranks(self, ranks: object, number: signal.Signals, why: str) -> None:
        """Never called."""

    def fired(self, fault: object, rank: int, **facts: Any) -> None:
        """Never called."""

    def eclipsed(self, fault: object, by: object, rank: int) -> None:
        """Never called."""

    def seen(self, rank: int, pid: int) -> None:
        """Nothing is to be learnt: there is one process."""

    def noted(self, rank: int, record: dict[str, Any]) -> None:
        """Never called."""

    def released(self, fault: object, rank: int, why: str) -> None:
        """Never called."""

    def others_wait(self) -> bool:
        """Never called."""
        return True


def _gated_write_us(folder: Path) -> float:
    """The same writes through the real gate and injector, each recorded in an operation log."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 1)
            install(theirs, 0, supervisor, reads=False, read_opens=False)
            os.execv(sys.executable, [sys.executable, "-c", _WRITER, str(folder / "gated"), str(_WRITES)])  # noqa: S606
        finally:
            os._exit(127)
    os.close(write)
    theirs.close()
    with ours:
        fds = socket.recv_fds(ours, 4096, 1)[1]
    operations = RecordWriter(folder / "operations.jsonl")
    plan = make_plan(crash_and_resume("warm")).attempts[-1]
    gate = Gate(str(folder), {}, Injector(plan, folder, {}, _Ignore(), operations).decide)
    gate.add(fds[0], 0)
    poll = _poll_both(fds[0], read)
    while True:
        ready = dict(poll.poll(60_000))
        if not ready or read in ready:
            break
        gate.handle(fds[0])
    with os.fdopen(read) as file:
        text = file.read()
    gate.close()
    operations.close()
    os.waitpid(pid, 0)
    return float(text)


def _poll_both(listener: int, output: int) -> select.poll:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(output, select.POLLIN)
    return poll


class _Weighing(AttemptRunner):
    """An attempt whose ranks are weighed when they have done all their work."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.private_bytes: list[int] = []

    def noted(self, rank: int, record: dict[str, Any]) -> None:
        """Follows the log as ever; at a rank's `end`, reads its memory while it waits."""
        super().noted(rank, record)
        if record.get("event") == "end":
            self.private_bytes.append(process.private_memory_bytes(self.process_id(rank)))


def rank_memory_mb(bench: Workbench) -> float:
    """Megabytes (10^6 bytes) that one warm rank has beyond the pages that it shares with the server."""
    scenario = job("sharded", ranks=2, name="bench-memory")
    plan = make_plan(scenario)
    directory = RunDirectory.create(bench.runs / scenario.name, plan)
    directory.attempt(0).mkdir()
    launcher: Launcher = bench.launcher(scenario)
    runner = _Weighing(plan, plan.attempts[0], directory, launcher)
    runner.run()
    return statistics.mean(runner.private_bytes) / 1e6
