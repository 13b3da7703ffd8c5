"""`harness check --reference`: a job is recorded once, then attacked wherever its saves can be.

Responsible for: the order of the parts (crash points and power cuts of a save, interleavings of its ranks, crash points of the
recovery), and one outcome of all. Not responsible for: how each part works; the plan for a command (`harness.check_command`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from harness import explore as exploring
from harness.case import Workbench, run_case
from harness.causes import Cause
from harness.check_plan import any_number
from harness.crash_states import CrashState, Points
from harness.error_loop import ErrorLoop, error_loop
from harness.errors import UsageError
from harness.explore import Exploration, Recordings
from harness.interleavings import commit_of, interleavings
from harness.oracle.verdict import Verdict
from harness.power_check import RealCut, real_power_states
from harness.scenario import Reference, Scenario
from harness.shard import Shard
from harness.sweep import Sweep, sweep
from harness.trace import Operation, SaveWindow

# A real cut takes some seconds, and shows one state of many.
_REAL_POINTS = 8
_MOST_SORTS = 2
_ERRORS = (("ENOSPC", "open"), ("ENOSPC", "write"), ("EIO", "write"), ("EIO", "fsync"), ("EIO", "rename"), ("EIO", "unlink"))
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        scenario: the job.
        save: which of its saves, from 1; 0 for all; None for the second of each sort of name, or the first of one.
        limit: most resumes per save, per recovery and per sweep of damage; None for all.
        power: how power is cut: `model`, `real` (on a real file system), `both`, or `none`.
        filesystem: the real one, ext4 or xfs.
        recovery: whether the restart after a crash is attacked too.
        interleave: whether ranks are held against each other.
        damage: whether the newest checkpoint is damaged at rest.
        errors: whether each operation fails once.
        jobs: resumes at a time.
        budget_s: seconds for everything; None for no limit.
        launch: how a command is started: `auto`, `warm` or `cold`.
        world_sizes: other numbers of ranks to resume a command on; None for one and twice as many.
        shard: the share of the cases that is run here; None for all.
    """

    scenario: Scenario
    save: int | None = 2
    limit: int | None = None
    power: Literal["model", "real", "both", "none"] = "model"
    filesystem: str = "ext4"
    recovery: bool = True
    interleave: bool = True
    damage: bool = False
    errors: bool = False
    jobs: int = 1
    budget_s: float | None = None
    launch: Literal["auto", "warm", "cold"] = "auto"
    world_sizes: tuple[int, ...] | None = None
    shard: Shard | None = None

    @property
    def modelled(self) -> bool:
        """Whether power-loss states are built by the model."""
        return self.power in ("model", "both")


@dataclass(frozen=True)
class Case:
    """A case that was run from its start: what was done, in words, and what came of it."""

    text: str
    verdict: Verdict
    path: Path


@dataclass(frozen=True)
class Part:
    """One part of a check: an exploration, cases that were run from their start, or a search.

    Attributes:
        name: what is done.
        exploration, cases, search: what came of it.
        left_out: cases that the budget did not reach.
        notes: say more of it.
        stated: whether what is left out is said elsewhere, so that it makes no part INCONCLUSIVE.
        blocked: why nothing can be said, "" where it can.
    """

    name: str
    exploration: Exploration | None = None
    cases: tuple[Case, ...] = ()
    left_out: int = 0
    notes: tuple[str, ...] = ()
    search: Sweep | ErrorLoop | None = None
    stated: bool = False
    blocked: str = ""

    @property
    def outcome(self) -> str:
        """PASS, FAIL or INCONCLUSIVE."""
        outcomes: set[str] = {case.verdict.outcome for case in self.cases}
        outcomes |= {"INCONCLUSIVE"} if self.blocked else set()
        if self.exploration is not None:
            found = replace(self.exploration, left_out=0) if self.stated else self.exploration
            outcomes.add(found.outcome)
            if self.exploration.num_states > self.exploration.elsewhere and not self.exploration.judged:
                outcomes.add("INCONCLUSIVE")  # nothing was tried, whether that is stated or not
        if self.search is not None:
            outcomes.add(self.search.outcome)
        if self.left_out and not self.stated:
            outcomes.add("INCONCLUSIVE")
        return worst(outcomes)


@dataclass(frozen=True)
class Check:
    """What came of a check.

    Attributes:
        request: what was asked for.
        parts: in the order in which they were run.
        recording_s: seconds that the uninterrupted runs took; `took_s` that all of it did.
        recordings: of the job.
        left_out: what was left out, in words.
        steps: updates of the uninterrupted run, where its log was read.
    """

    request: Request
    parts: tuple[Part, ...]
    recording_s: float
    took_s: float
    recordings: Recordings | None = field(default=None, repr=False)
    left_out: Sequence[str] = ()
    steps: int | None = None

    @property
    def outcome(self) -> str:
        """PASS, FAIL or INCONCLUSIVE."""
        return worst({part.outcome for part in self.parts})


def worst(outcomes: set[str]) -> str:
    """FAIL beats INCONCLUSIVE beats PASS."""
    return next((word for word in ("FAIL", "INCONCLUSIVE") if word in outcomes), "PASS")


def check(request: Request, bench: Workbench, folder: Path, say: Say, progress: exploring.Progress) -> Check:
    """Runs all parts.

    Args:
        request: what is asked for.
        bench: where cases are run.
        folder: where recordings and the cases of explorations go; nothing else may be in it.
        say: is told of each part that begins.
        progress: as for `harness.explore.explore`.

    Raises:
        UsageError: the job has no such save.
        LaunchError, CapabilityError: it could not be run.
    """
    began = time.monotonic()
    until = None if request.budget_s is None else began + request.budget_s
    say("recording the job, once undisturbed and once with each writing rank last")
    recordings = exploring.record(request.scenario, bench, folder)
    recorded_s = time.monotonic() - began
    parts = list(Parts(request, recordings, bench, folder, until, say, progress).all())
    return Check(request, tuple(parts), recorded_s, time.monotonic() - began, recordings)


@dataclass(frozen=True)
class Parts:
    """The parts of one check, and what they share."""

    request: Request
    recordings: Recordings
    bench: Workbench
    folder: Path
    until: float | None
    say: Say
    progress: exploring.Progress

    def all(self) -> Iterator[Part]:
        """Runs one part after the other."""
        windows = self.windows()
        if not windows:  # nothing to explore; the exploration itself says why
            empty = SaveWindow("(none)", 0, 0, None)
            yield Part("crash points", exploring.explore(self.recordings, empty, self.bench, self.folder / "none"))
            return
        for window in windows:
            cuts = ", and power cuts" if self.request.modelled else ""
            part = self.explored(f"crash points of {window.name}{cuts}", window, power=self.request.modelled)
            yield part
            if part.exploration is not None and part.exploration.inconclusive:
                return
            if self.request.power in ("real", "both") and window.name in self.own([one.name for one in windows]):
                yield self.cut_for_real(window)
            if self.request.interleave:
                yield self.interleaved(window)
        if self.request.recovery:
            yield from self.recoveries(windows[0], self.request.limit)
        if self.request.damage:
            yield self.damaged()
        if self.request.errors:
            yield from self.failing_operations()

    def windows(self) -> list[SaveWindow]:
        """The saves that are attacked. Raises: UsageError: there is no such save.

        By default the second one, and where the job saves under names of two sorts (the last state and the best weights), the
        second of each: the first that is written may be the one that nobody resumes from.
        """
        saves, save = self.recordings.recorded.trace.saves(), self.request.save
        if not saves or save == 0:
            return saves
        if save is None:
            sorts = list(dict.fromkeys(any_number(one.name) for one in saves))[:_MOST_SORTS]
            second = [[one for one in saves if any_number(one.name) == sort][:2][-1] for sort in sorts]
            return sorted(second, key=lambda one: one.start)
        if save > len(saves):
            names = ", ".join(one.name for one in saves)
            limits = f"the job saves {len(saves)} times ({names}); expected 1 to {len(saves)}, or all"
            raise UsageError([f"--save {save}: {limits}"])
        return [saves[save - 1]]

    def _left(self) -> float | None:
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    def own(self, keys: Iterable[str]) -> set[str]:
        """Those of the share that is run here."""
        return set(keys) if self.request.shard is None else self.request.shard.of(keys)

    def _over(self) -> bool:
        return self.until is not None and time.monotonic() > self.until

    def explored(
        self,
        name: str,
        window: SaveWindow,
        *,
        kill: bool = True,
        power: bool = True,
        limit: int | None = None,
        share: float = 1.0,
        known: Sequence[Cause] = (),
    ) -> Part:
        """Crash states of a save, at most `limit` resumes (all that were asked for, if any), within a share of the time left."""
        folder = self.folder / (window.name if kill else f"{window.name}-power")
        return self._explored(name, self.recordings, window, folder, kill, power, limit, share, known)

    def _explored(
        self,
        name: str,
        recordings: Recordings,
        window: SaveWindow,
        folder: Path,
        kill: bool,
        power: bool,
        limit: int | None,
        share: float,
        known: Sequence[Cause] = (),
    ) -> Part:
        self.say(name)
        left = self._left()
        asked = self.request.limit  # of all shares together; what the budget has room for is this one's
        states = exploring.explore(
            recordings,
            window,
            self.bench,
            folder,
            kill=kill,
            power=power,
            jobs=self.request.jobs,
            budget_s=None if left is None else share * left,
            limit=asked,
            shard=self.request.shard,
            own_limit=limit if asked is None else None,
            known=known,
            progress=self.progress,
        )
        return Part(name, states, notes=recordings.recorded.trace.assumed[:3])

    def cut_for_real(self, window: SaveWindow) -> Part:
        """Real power cuts at a sample of the points of a save."""
        name = f"real power cuts during {window.name}, on {self.request.filesystem}"
        self.say(name)
        folder = self.folder / f"{window.name}-{self.request.filesystem}"
        folder.mkdir(parents=True)
        arguments = (self.recordings, window, self.bench, folder, self.request.filesystem, _REAL_POINTS)
        found = real_power_states(*arguments, self.progress)
        cases = tuple(Case(f"{cut.faults[0]}: {_what_survived(cut)}", cut.judged.verdict, cut.judged.path) for cut in found.cuts)
        notes = [found.sample, f"{len(found.cuts) - len(found.outside)} of {len(found.cuts)} left a state that the model builds"]
        notes += [f"not in the model: {case.path}" for case, cut in zip(cases, found.cuts, strict=True) if cut.survivors is None]
        return Part(name, None, cases, notes=tuple(notes))

    def interleaved(self, window: SaveWindow) -> Part:
        """One rank held against the one that commits."""
        name = f"interleavings of {window.name}"
        self.say(name)
        scenario = self.request.scenario
        cases, left_out = [], 0
        found = list(enumerate(interleavings(self.recordings.points(window), scenario.workload.commit_pattern)))
        own = self.own([str(one) for _, one in found])
        for number, one in found:
            if str(one) not in own:
                continue
            if self._over():
                left_out += 1
                continue
            case = f"{scenario.name}-interleaving-{window.name}-{number}"
            verdict, directory = run_case(scenario.model_copy(update={"name": case, "faults": one.faults}), self.bench)
            cases.append(Case(str(one), verdict, directory.path))
        return Part(name, None, tuple(cases), left_out)

    def recoveries(self, window: SaveWindow, limit: int | None) -> Iterator[Part]:
        """Crash points of the restart after a crash in a save, at most `limit` resumes each."""
        points = self.recordings.points(window)
        for number, state in enumerate(untidy_states(points, self.request.scenario.workload.commit_pattern)):
            name = f"crash points of the recovery after '{state.faults[0]}'"
            if self._over():  # recording it alone takes two runs and more
                self.say(name)
                yield Part(name, left_out=1)
                continue
            where = self.folder / f"recovery-{number}"
            where.mkdir(parents=True, exist_ok=True)
            try:
                recovery = exploring.record_recovery(self.recordings.recorded, state, self.bench, where)
            except UsageError:  # of a command; where it is due to the save, that has been told of already
                yield Part(name, left_out=1, notes=(f"that restart did not come to its end, so it has none; see {where}",))
                continue
            arguments = (name, recovery, recovery_window(recovery), where / "states")
            yield self._explored(*arguments, kill=True, power=self.request.modelled, limit=limit, share=1.0)

    def damaged(self) -> Part:
        """Every damage to the newest checkpoint."""
        name = "damage at rest to the newest checkpoint"
        self.say(name)
        scenario = self.request.scenario
        workload = scenario.workload
        if isinstance(workload, Reference):  # one checkpoint is damaged, and another one must be there to go back to
            scenario = scenario.model_copy(
                update={"workload": workload.model_copy(update={"keep_last": max(2, workload.keep_last)})}
            )
        recordings = exploring.record(scenario, self.bench, self.folder / "undamaged", once=True)
        arguments = (recordings, self.bench, self.folder / "damaged")
        found = sweep(
            *arguments,
            jobs=self.request.jobs,
            budget_s=self._left(),
            sample=self.request.limit,
            shard=self.request.shard,
            progress=self.progress,
        )
        return Part(name, search=found)

    def failing_operations(self) -> Iterator[Part]:
        """Each operation of each rank failing once, with each error."""
        trace = self.recordings.recorded.trace
        loops = {
            f"{error} at each {operation} of rank {rank}": (error, operation, rank)
            for rank in trace.ranks
            for error, operation in _ERRORS
            if any(op.operation == operation for op in trace.of_rank(rank))
        }
        own = self.own(loops)
        for name, (error, operation, rank) in loops.items():
            if name not in own:
                continue
            self.say(name)
            if self._over():
                yield Part(name, left_out=1)
                continue
            folder = self.folder / f"{error}-{operation}-{rank}"
            arguments = (self.request.scenario, self.bench, folder, error, operation, rank)
            yield Part(name, search=error_loop(*arguments, jobs=self.request.jobs, budget_s=self._left()))


def _what_survived(cut: RealCut) -> str:
    return f"kept {cut.survivors}" if cut.survivors is not None else f"lost {', '.join(cut.lost)}"


def untidy_states(points: Points, pattern: str | None) -> list[CrashState]:
    """The crash states whose recovery has most to do.

    Right before the commit; in the middle of the rotation after it; and with a part of a file left over, which the next save
    finds under the name that it wants.
    """
    natural = [s for s in points.enumerate(power=False).states if s.natural]
    states = [state for state in natural if state.torn is None]
    commit = commit_of(points, pattern)
    if commit is None or not states:
        return states[len(states) // 2 : len(states) // 2 + 1]
    before = [state for state in states if not _has(points, state, commit)]
    removing = [s for s in states if _has(points, s, commit) and s.last is not None and s.last.operation in ("unlink", "rmdir")]
    partly = [state for state in natural if not _has(points, state, commit) and _in_a_file(points, state)]
    return [*before[-1:], *removing[:1], *partly[-1:]]


def _in_a_file(points: Points, state: CrashState) -> bool:
    """Whether a file is written in part: in the middle of a write, or before the last one of it."""
    if state.torn is not None or state.last is None or state.last.operation != "write":
        return state.torn is not None
    done = set(state.done)
    return any(
        isinstance(event, Operation)
        and (event.rank, event.operation, event.path) == (state.last.rank, "write", state.last.path)
        and index not in done
        for index, event in enumerate(points.trace.events[points.window.start : points.window.stop], points.window.start)
    )


def _has(points: Points, state: CrashState, operation: Operation) -> bool:
    done = (points.trace.events[index] for index in state.done)
    return any(isinstance(event, Operation) and event.n == operation.n for event in done)


def recovery_window(recovery: Recordings) -> SaveWindow:
    """From the restart to the end of the rotation after its first save: load, cleaning up, save, rotation."""
    trace = recovery.recorded.trace
    saves: Sequence[SaveWindow] = trace.saves()
    if not saves:
        return SaveWindow("the recovery", 0, len(trace.events), None)
    return SaveWindow("the recovery", 0, saves[0].stop, saves[0].returned)
