"""`harness check -- COMMAND`: the default plan for any trainer, within a budget, the worst and most informative cases first.

Responsible for: the order of the parts, their shares of the budget, running the planned cases several at a time, and saying why
nothing can be said of a job that never saves, never resumes, or does not repeat itself.
Not responsible for: which cases there are (`harness.check_plan`), how explorations work (`harness.check`, `harness.explore`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from harness import check_plan
from harness import explore as exploring
from harness.case import Workbench, run_case
from harness.causes import Cause
from harness.check import Case, Check, Part, Parts, Request, Say
from harness.check_plan import Job, Planned
from harness.checkpoint_files import top_level
from harness.errors import HarnessError
from harness.explore import Recordings
from harness.oracle.finding import inconclusive
from harness.oracle.verdict import Verdict
from harness.scenario import Command, Scenario
from harness.store import Baseline, RunDirectory, read_attempt, read_records
from harness.trace import SaveWindow
from harness.warming import Started, choose_launch
from harness.workers import OutOfTime, ended_at, run_all

# Of the time that is left when each of them begins.
_CRASH_SHARE, _POWER_SHARE, _RECOVERY_SHARE = 0.4, 0.5, 0.5
# A state of each look, and the cases of other kinds that come after crash points: a second one of a look is worth less than they.
_LEAST_STATES, _LATER_CASES = 6, 9
# Undisturbed, a job may take so long; its restarts then get a multiple of what it took.
FIRST_DEADLINE_S = 600.0
_LEAST_DEADLINE_S, _DEADLINE_FACTOR = 60.0, 5.0
_MEMORY_SHARE = 0.9
# Of the budget, what is kept for ending what runs and for telling what was found.
_TELLING_SHARE = 0.02
# A case that is still to end within the budget: two launches, each as long as the uninterrupted run; of a short budget a share.
_LAUNCHES_OF_A_CASE, _MOST_MARGIN = 2, 0.25
# Undisturbed runs, started as they stand, that a case with other data takes; and the case.
_OVERFLOW_RUNS = 3
# As `harness.baseline.first_difference` says it.
_NAMES_DIFFER = ": checkpoint is "
_TOO_LONG = (
    "the budget was used up before the control had run (--budget): the uninterrupted runs, with which everything is compared, "
    "had not ended by then; expected a shorter job or a larger budget"
)
NEVER_RESUMED = (
    'the job never resumed: each restart began from scratch although a checkpoint stood there. Pass --resume-command "…", or the '
    "option of your trainer that resumes (expected: started again, the same command goes on from its newest checkpoint)"
)


def check_command(
    request: Request,
    bench: Workbench,
    folder: Path,
    say: Say,
    progress: exploring.Progress,
    note: Say = lambda _: None,
    began: float | None = None,
) -> Check:
    """Runs all parts of the plan that the budget has room for, and ends within it.

    Args:
        request: what is asked for; its workload is a command.
        bench: where cases are run.
        folder: where recordings and run directories go; nothing else may be in it.
        say: is told of each part that begins.
        progress: as for `harness.explore.explore`.
        note: is told what is worth a line as soon as it is known.
        began: from when on the budget counts (`time.monotonic`); from now on by default.

    Raises:
        UsageError: the command fails by itself, or does nothing that can be seen.
        LaunchError, CapabilityError: it could not be run.
    """
    began = time.monotonic() if began is None else began
    end = None if request.budget_s is None else began + request.budget_s * (1 - _TELLING_SHARE)
    say("running the job twice, undisturbed")
    patient = request.scenario.model_copy(update={"deadline_s": FIRST_DEADLINE_S})
    try:
        with ended_at(end):
            started = choose_launch(patient, bench, request.launch)
    except OutOfTime:
        took_s = time.monotonic() - began
        return Check(request, (Part(check_plan.CONTROL, blocked=_TOO_LONG),), took_s, took_s)
    note(started.text)
    golden_s = time.monotonic() - began
    took_s = _took_s(started.golden)
    scenario = started.scenario.model_copy(update={"deadline_s": max(_LEAST_DEADLINE_S, _DEADLINE_FACTOR * took_s)})
    bench = replace(started.bench, runs=folder / "cases")
    shared = _Shared(
        *(replace(request, scenario=scenario), bench, folder, began, end, say, progress, note, started),
        job=Job.of(started.baseline),
        launch_s=took_s,
    )
    parts: list[Part] = []
    try:
        with ended_at(end):
            for part in shared.all():  # one by one: those that are there by then are to be told
                parts.append(part)
                shared.under_way = False
    except OutOfTime:
        stopped = f"{shared.doing}: stopped in the middle when the budget ended; and all that follows"
        shared.left_out.append(stopped if shared.under_way else f"all that comes after {shared.doing}: the budget ended")
    _tidy(parts)
    return Check(
        shared.request, tuple(parts), golden_s, time.monotonic() - began, shared.recordings, shared.left_out, shared.job.steps
    )


@dataclass(frozen=True)
class _RunOne:
    """Runs one planned case; None where the time is up."""

    scenario: Scenario
    bench: Workbench
    until: float | None

    def __call__(self, planned: Planned) -> Case | None:
        if self.until is not None and time.monotonic() > self.until:
            return None
        changes = {
            "name": f"{self.scenario.name}-" + re.sub(r"[^A-Za-z0-9_.]+", "-", planned.title)[:60].strip("-"),
            "faults": planned.faults,
            "world_sizes": planned.world_sizes or self.scenario.world_sizes,
            "expect": planned.expect,
            "max_attempts": planned.max_attempts,
            "compare_with": planned.compare_with,
        }
        scenario = self.scenario.model_copy(update=changes)
        try:
            verdict, directory = run_case(scenario, self.bench)
        except HarnessError as error:  # of one case; the others can still be told
            finding = inconclusive("not-comparable", "check", f"this case could not be run: {error}")
            return Case(
                planned.title, Verdict(scenario.name, "; ".join(planned.faults), "INCONCLUSIVE", (finding,)), self.bench.runs
            )
        return Case(planned.title, verdict, directory.path)


@dataclass
class _Shared:
    """The parts of one check, and what they share."""

    request: Request
    bench: Workbench
    folder: Path
    began: float
    end: float | None  # when everything ends
    say: Say
    progress: exploring.Progress
    note: Say
    started: Started
    job: Job
    launch_s: float  # seconds that an undisturbed launch takes
    recordings: Recordings | None = None
    left_out: list[str] = field(default_factory=list)
    rate_s: float = 1.0  # seconds per launch, as measured
    doing: str = ""
    under_way: bool = True
    num_cases: int = 0

    @property
    def until(self) -> float | None:
        """Until when a case may be begun: what has been started is not to be cut short."""
        if self.end is None or self.request.budget_s is None:
            return None
        return self.end - min(_MOST_MARGIN * self.request.budget_s, _LAUNCHES_OF_A_CASE * self.launch_s)

    def all(self) -> Iterator[Part]:
        """Runs one part after the other, as long as there is something to be learnt."""
        if why := _nothing_to_judge(self.started.baseline, self._has_written()):
            yield Part(check_plan.CONTROL, blocked=why)
            return
        first = check_plan.first_cases(self.job)
        # All that follows is planned by them, in every share.
        ran = self._run("the control, kills between saves, SIGTERM", first, split=False)
        if ran and ran[0][0].part == check_plan.CONTROL:
            self.launch_s = ran[0][1].verdict.duration_s or self.launch_s
        if not ran:
            yield Part(check_plan.CONTROL, blocked=self._too_short())
            return
        if _never_resumed(ran, _writes_to_tell(ran, self.job)):
            yield from self._parts([pair for pair in ran if pair[0].part == check_plan.CONTROL])
            # What the job calls a save may have left no file behind.
            yield Part(check_plan.KILLS, blocked=NEVER_RESUMED if self._has_written() else self._never_saved())
            return
        yield from self._parts(ran)
        workload = self.request.scenario.workload
        if isinstance(workload, Command) and workload.control_command:
            # Whoever gives it asks for this before anything else.
            yield from self._parts(self._run("the control command", [check_plan.done_otherwise()]))
        if self.job.saves or self._has_written():
            yield from self._attacks(dict(ran))
        else:
            yield Part("crash points of a save", blocked=self._never_saved())

    def _too_short(self) -> str:
        """That no case would have ended in time."""
        spent_s, needed_s = time.monotonic() - self.began, _LAUNCHES_OF_A_CASE * self.launch_s
        return (
            f"no case would have ended within the budget of {self.request.budget_s or 0:g} s (--budget): the uninterrupted runs "
            f"took {spent_s:.0f} s, and a case takes about {needed_s:.0f} s; expected a shorter job or a larger budget"
        )

    def _attacks(self, ran: dict[Planned, Case]) -> Iterator[Part]:
        """All that is done to saves, and what the job does after them."""
        if not self._record():
            # Everything else may be sampled; but nothing has been learnt of a trainer whose saves nobody has cut.
            self.left_out.append("crash points of a save, and all that follows")
            yield Part(
                "crash points of a save", blocked="the budget ended before any save was attacked; expected a larger --budget"
            )
            return
        assert self.recordings is not None
        parts = Parts(self.request, self.recordings, self.bench, self.folder, self.until, self._begin, self.progress)
        windows = parts.windows()
        known: dict[SaveWindow, tuple[Cause, ...]] = {}
        for window in windows:
            part = self._sampled(parts, f"crash points of {window.name}", window, _CRASH_SHARE / len(windows))
            known[window] = part.exploration.causes if part.exploration else ()
            yield part
        if self.request.modelled:
            for window in windows:
                name = f"power cuts during {window.name}"
                yield self._sampled(parts, name, window, _POWER_SHARE / len(windows), power=True, known=known[window])
        yield from self._parts(self._run("second interruptions, errors, damage, hung ranks", self._planned(ran, windows)))
        yield from self._long_ones()
        yield from self._rest(parts, windows)

    def _record(self) -> bool:
        """Whether there was time to learn what the job writes."""
        if self.until is not None and time.monotonic() > self.until:
            return False
        self._begin("recording the job, to learn what it writes")
        with contextlib.suppress(OutOfTime):
            self.recordings = exploring.record(self.request.scenario, self.bench, self.folder / "recorded")
        return self.recordings is not None

    def _planned(self, ran: dict[Planned, Case], windows: Sequence[SaveWindow]) -> list[Planned]:
        """The cases that come after the first crash points: what needs no other uninterrupted run."""
        assert self.recordings is not None
        trace, save = self.recordings.recorded.trace, self.job.attacked
        cases = [case for case in check_plan.later_cases(self.job, ()) if case.part != check_plan.OVERFLOW]
        if save is not None and save.known is not None:
            again = check_plan.cut_restart(trace, trace.saves(), save.known)
            cases[:0] = [again] if again else []
        else:
            what = "kills next to a save, a second interruption, damage at rest"
            seen = "seen: what torch.save, safetensors or DCP write to a file below {ckpt}; the crash points cover the whole run"
            self.left_out.append(f"{what}: no save of the job could be told from another ({seen})")
        cases += [twice] if (twice := self._second_request(ran)) else []
        cases += [] if self.request.errors else check_plan.failing_operations(trace, windows[0]) if windows else []
        return cases + ([] if self.request.damage else self._damages())

    def _long_ones(self) -> Iterator[Part]:
        """Cases that need an uninterrupted run of their own, or other numbers of ranks."""
        sizes, notes = self._sizes()
        self.left_out += notes
        cases = [c for c in check_plan.later_cases(self.job, sizes) if c.part in (check_plan.OVERFLOW, check_plan.SIZES)]
        if self.until is not None and time.monotonic() + _OVERFLOW_RUNS * _took_s(self.started.golden) > self.until:
            cases = [case for case in cases if case.part != check_plan.OVERFLOW]
            self.left_out += [f"{check_plan.OVERFLOW}: it needs uninterrupted runs of its own"] if self.job.scaled else []
        if cases:
            yield from self._parts(self._run("overflow batches, other numbers of ranks", cases))

    def _rest(self, parts: Parts, windows: Sequence[SaveWindow]) -> Iterator[Part]:
        """What takes longest, and finds least that is new."""
        if self.request.interleave and self.job.ranks > 1:
            for window in windows:
                if not self._over(f"interleavings of {window.name}"):
                    part = self._stated(parts.interleaved(window))
                    if part.cases:  # else there is nothing that luck orders
                        yield part
        if self.request.damage and not self._over("every damage at rest"):
            yield replace(parts.damaged(), stated=True)
        if self.request.errors and not self._over("an error of each operation"):
            yield from map(self._stated, parts.failing_operations())
        if self.request.power in ("real", "both"):
            own = parts.own([window.name for window in windows])
            mine = [window for window in windows if window.name in own]
            yield from (parts.cut_for_real(window) for window in mine if not self._over("real power cuts"))
        if self.request.recovery and windows and not self._over("crash points of the recovery"):
            try:
                recoveries = map(self._stated, parts.recoveries(windows[0], self._limit(_RECOVERY_SHARE)))
                # One that the budget did not reach is left out, no more.
                yield from (part for part in recoveries if part.exploration is not None and part.exploration.judged)
            except HarnessError as error:  # a restart that fails has been told of already
                why = str(error).splitlines()[0].removesuffix("; its last words:")
                self.left_out.append(f"crash points of the recovery: {why}")

    # -- running --------------------------------------------------------------------------------------------------------

    def _run(self, name: str, cases: Sequence[Planned], *, split: bool = True) -> list[tuple[Planned, Case]]:
        """Those of the cases, or of this share of them, that the budget has room for."""
        if split and self.request.shard is not None:
            own = self.request.shard.of(f"{case.part}: {case.title}" for case in cases)
            cases = [case for case in cases if f"{case.part}: {case.title}" in own]
        if not cases:
            return []
        self._begin(name)
        began = time.monotonic()
        task = _RunOne(self.request.scenario, self.bench, self.until)
        found: dict[Planned, Case] = {}
        with contextlib.suppress(OutOfTime):  # those that are done by then can be told
            for planned, case in run_all(task, cases, min(self.request.jobs, len(cases)), ordered=False):
                if case is None:
                    continue
                found[planned] = case
                self._told(case)
                failing = sum(one.verdict.outcome == "FAIL" for one in found.values())
                self.progress(len(found), failing, len(cases))
        self.left_out += [f"{planned.part}: {planned.title}" for planned in cases if planned not in found]
        if found:
            self.rate_s = max(0.05, (time.monotonic() - began) / len(found) / _LAUNCHES_OF_A_CASE)
        return [(planned, found[planned]) for planned in cases if planned in found]

    def _begin(self, name: str) -> None:
        self.doing, self.under_way = name, True
        self.say(name)

    def _told(self, case: Case) -> None:
        """The first verdict is told at once: nobody is to wait for the end for that."""
        self.num_cases += 1
        if self.num_cases == 1:
            verdict = case.verdict
            kind = f" {verdict.kind}" if verdict.kind else ""
            self.note(f"first verdict after {time.monotonic() - self.began:.0f} s: {verdict.outcome}{kind}: {case.text}")

    def _parts(self, ran: Sequence[tuple[Planned, Case]]) -> Iterator[Part]:
        for name in dict.fromkeys(planned.part for planned, _ in ran):
            cases = tuple(case for planned, case in ran if planned.part == name)
            yield Part(name, cases=cases, stated=True, notes=self._notes(name))

    def _notes(self, name: str) -> tuple[str, ...]:
        if name == check_plan.SIZES:
            return ("losses are compared where a batch holds as many samples on both numbers of ranks",)
        if name in (check_plan.ERRORS, check_plan.DAMAGE):
            option = "--errors" if name == check_plan.ERRORS else "--damage"
            return (f"a sample; {option} takes them all",)
        return ()

    def _sampled(
        self, parts: Parts, name: str, window: SaveWindow, share: float, *, power: bool = False, known: Sequence[Cause] = ()
    ) -> Part:
        began = time.monotonic()
        limit = self._limit(share, _LATER_CASES)
        part = self._stated(parts.explored(name, window, kill=not power, power=power, limit=limit, share=share, known=known))
        exploration = part.exploration
        if exploration is not None and exploration.num_resumes:
            self.rate_s = max(0.05, (time.monotonic() - began) / exploration.num_resumes)
        return part

    def _stated(self, part: Part) -> Part:
        found = part.exploration
        if found is not None and (count := found.left_out + found.not_asked):
            self.left_out.append(f"{part.name}: {count} of {count + len(found.judged)} distinct states (a sample)")
        elif found is None and part.left_out:
            some = f": {part.left_out} of {part.left_out + len(part.cases)} cases" if part.cases else ""
            self.left_out.append(": ".join([part.name + some, *part.notes]))
        return replace(part, stated=True)

    def _limit(self, share: float, later: int = 0) -> int | None:
        """How many resumes fit into a share of the time that is left, without `later` cases, at the rate that was measured."""
        if self.request.limit is not None or self.until is None:
            return self.request.limit
        left_s = self.until - time.monotonic() - later * _LAUNCHES_OF_A_CASE * self.rate_s
        return max(_LEAST_STATES, int(share * max(0.0, left_s) / self.rate_s))

    def _over(self, what: str) -> bool:
        if self.until is None or time.monotonic() < self.until:
            return False
        self.left_out.append(what)
        return True

    # -- what is known of the job ------------------------------------------------------------------------------------------

    def _second_request(self, ran: dict[Planned, Case]) -> Planned | None:
        asked = next((case for planned, case in ran.items() if planned.part == check_plan.ASKED), None)
        if asked is None:
            return None
        attempt = read_attempt(RunDirectory(asked.path).attempt(0))
        last = max((batch.step for log in attempt.ranks.values() for batch in log.batches), default=0)
        twice = check_plan.second_request(self.job, attempt.operations, last)
        if twice is None:
            self.left_out.append(
                f"{check_plan.ASKED_TWICE}: the first one ends the job at once, so there is no moment for a second"
            )
        return twice

    def _damages(self) -> list[Planned]:
        save = self.job.attacked
        records, _ = read_records(self.started.golden / "attempt.jsonl")
        commits = [record for record in records if record["event"] == "committed"]
        upto = [record["files"] for record in commits if save is not None and record["step"] <= save.step]
        holding = [files for files in upto if save is not None and any(top_level(path) == save.name for path in files)]
        if save is None or not holding:
            return []
        ends = [path for record in records if record["event"] == "files" for path in record["files"]]
        others = {top_level(path) for path in ends} - {top_level(path) for record in commits for path in record["files"]}
        standing = sorted({top_level(path) for files in upto for path in files} | others)
        cases = check_plan.damages(self.job, {path: size for path, (size, _) in holding[-1].items()}, standing)
        if not cases:
            self.left_out.append("damage at rest: the newest checkpoint cannot be told by its name among what the job writes")
        return cases

    def _sizes(self) -> tuple[tuple[int, ...], list[str]]:
        """Other numbers of ranks that the command can be given and the memory has room for, and what is left out."""
        workload = self.request.scenario.workload
        assert isinstance(workload, Command)
        if not any("{world_size}" in word for word in workload.command):
            return (), ["other numbers of ranks: the command has no {world_size}"]
        sizes = check_plan.other_sizes(self.job.ranks, self.request.world_sizes)
        free = _MEMORY_SHARE * psutil.virtual_memory().available
        return check_plan.fitting(sizes, _rank_memory(self.started.golden), free)

    def _has_written(self) -> bool:
        records, _ = read_records(self.started.golden / "attempt.jsonl")
        return any(record["event"] == "files" and record["files"] for record in records)

    def _never_saved(self) -> str:
        recordings = exploring.record(self.request.scenario, self.bench, self.folder / "recorded", once=True)
        return "the job never saved: " + exploring.no_checkpoint(recordings.recorded.directory.checkpoints, recordings.outside)


def _nothing_to_judge(baseline: Baseline, has_written: bool) -> str:
    if baseline.unstable and not has_written:
        # The commonest reason by far: its second run goes on from what the first one has saved.
        return (
            f"two undisturbed runs differ, first at {baseline.unstable}, and neither wrote below its checkpoint directory. If "
            "the job saves elsewhere, the second run went on from there: pass {ckpt} to it. Else seed every generator"
        )
    if _NAMES_DIFFER in baseline.unstable:
        return (
            f"the job names its checkpoints otherwise in every run: two undisturbed runs differ, first at {baseline.unstable}. "
            "Name them by the step, without a time, a process or a random part, so that one run can be compared with another"
        )
    if baseline.unstable:
        return (
            f"the job is not deterministic: two undisturbed runs differ, first at {baseline.unstable}. Seed every generator and "
            "use deterministic algorithms, so that a resumed run can be told from another one"
        )
    return ""


def _never_resumed(ran: Sequence[tuple[Planned, Case]], writes: int = 0) -> bool:
    """Whether each restart began anew although a checkpoint stood there; once is not enough to say so.

    Args:
        ran: cases.
        writes: as of `_writes_to_tell`.
    """
    owed = [case for planned, case in ran if planned.owed]
    return bool(owed) and all(case.verdict.kind == "restarted-from-scratch" or _began_anew(case, writes) for case in owed)


def _writes_to_tell(ran: Sequence[tuple[Planned, Case]], job: Job) -> int:
    """How many writes make a restart a whole run, where its first line does not tell; else 0.

    A log whose first line is of step 10 has the same first line after a resume from step 8.
    """
    control = next((case for planned, case in ran if planned.part == check_plan.CONTROL), None)
    return 0 if control is None or not job.told or job.told[0] <= 1 else _writes(control, 0)


def _writes(case: Case, attempt: int) -> int:
    return sum(r.get("operation") == "write" for r in read_attempt(RunDirectory(case.path).attempt(attempt)).operations)


def _began_anew(case: Case, writes: int) -> bool:
    """Whether the restart began with the first step although files stood there, and nobody has seen what they are."""
    if case.verdict.outcome != "PASS" or case.verdict.resumed_from[:1] != (0,):
        return False
    files = read_attempt(RunDirectory(case.path).attempt(0)).files("end")
    return bool(files) and (not writes or _writes(case, 1) >= writes)


def _took_s(golden: Path) -> float:
    records, _ = read_records(golden / "attempt.jsonl")
    return max((float(record["duration_s"]) for record in records if record["event"] == "ended"), default=0.0)


def _rank_memory(golden: Path) -> float:
    """Bytes that the largest process of the uninterrupted run had in memory."""
    records, _ = read_records(golden / "attempt.jsonl")
    return 1024.0 * max((record.get("max_memory_kib", 0) for record in records if record["event"] == "exited"), default=0)


def _tidy(parts: Sequence[Part]) -> None:
    """Removes the run directories of what has passed, as explorations do."""
    for part in parts:
        for case in part.cases:
            if case.verdict.outcome == "PASS":
                shutil.rmtree(case.path, ignore_errors=True)
