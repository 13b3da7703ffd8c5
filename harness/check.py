"""`harness check`: a job is recorded once, then attacked wherever its saves can be, and every finding is named once.

Responsible for: the order of the parts (crash points and power cuts of a save, interleavings of its ranks, crash points of the
recovery), their share of the budget, and one outcome of all. Not responsible for: how each part works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness import explore as exploring
from harness.case import Workbench, run_case
from harness.crash_states import CrashState, Points
from harness.errors import UsageError
from harness.explore import Exploration, Recordings
from harness.interleavings import commit_of, interleavings
from harness.oracle.verdict import Verdict
from harness.power_check import RealCut, real_power_states
from harness.scenario import Scenario
from harness.trace import Operation, SaveWindow

# A real cut takes some seconds, and shows one state of many.
_REAL_POINTS = 8
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        scenario: the job.
        save: which of its saves, from 1; 0 for all.
        limit: most resumes per save and per recovery; None for every state.
        power: how power is cut: `model`, `real` (on a real file system), `both`, or `none`.
        filesystem: the real one, ext4 or xfs.
        recovery: whether the restart after a crash is attacked too.
        interleave: whether ranks are held against each other.
        jobs: resumes at a time.
        budget_s: seconds for everything; None for no limit.
    """

    scenario: Scenario
    save: int = 2
    limit: int | None = None
    power: Literal["model", "real", "both", "none"] = "model"
    filesystem: str = "ext4"
    recovery: bool = True
    interleave: bool = True
    jobs: int = 1
    budget_s: float | None = None

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
    """One part of a check: an exploration, or cases that were run from their start; `notes` say more of it, in words."""

    name: str
    exploration: Exploration | None = None
    cases: tuple[Case, ...] = ()
    left_out: int = 0
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """PASS, FAIL or INCONCLUSIVE."""
        outcomes: set[str] = {case.verdict.outcome for case in self.cases}
        if self.exploration is not None:
            outcomes.add(self.exploration.outcome)
        if self.left_out:
            outcomes.add("INCONCLUSIVE")
        return worst(outcomes)


@dataclass(frozen=True)
class Check:
    """What came of a check."""

    request: Request
    parts: tuple[Part, ...]
    recording_s: float
    recordings: Recordings | None = field(default=None, repr=False)

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
        folder: where recordings and the cases of explorations go; made, and must not exist.
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
    parts = list(_parts(request, recordings, bench, folder, until, say, progress))
    return Check(request, tuple(parts), recorded_s, recordings)


def _parts(
    request: Request,
    recordings: Recordings,
    bench: Workbench,
    folder: Path,
    until: float | None,
    say: Say,
    progress: exploring.Progress,
) -> Iterator[Part]:
    windows = _windows(request, recordings)
    if not windows:  # nothing to explore; the exploration itself says why
        empty = SaveWindow("(none)", 0, 0, None)
        yield Part("crash points", exploring.explore(recordings, empty, bench, folder / "none"))
        return
    for window in windows:
        name = f"crash points of {window.name}" + (", and power cuts" if request.modelled else "")
        say(name)
        states = exploring.explore(
            recordings,
            window,
            bench,
            folder / window.name,
            power=request.modelled,
            jobs=request.jobs,
            budget_s=_left(until),
            limit=request.limit,
            progress=progress,
        )
        yield Part(name, states)
        if states.inconclusive:
            return
        if request.power in ("real", "both"):
            say(f"real power cuts during {window.name}, on {request.filesystem}")
            yield _cut_for_real(request, recordings, window, bench, folder / f"{window.name}-{request.filesystem}", progress)
        if request.interleave:
            say(f"interleavings of {window.name}")
            yield _interleave(request, recordings, window, bench, until)
    if request.recovery:
        yield from _recoveries(request, recordings, windows[0], bench, folder, until, say, progress)


def _windows(request: Request, recordings: Recordings) -> list[SaveWindow]:
    saves = recordings.recorded.trace.saves()
    if not saves or request.save == 0:
        return saves
    if request.save > len(saves):
        names = ", ".join(save.name for save in saves)
        raise UsageError(
            [f"--save {request.save}: the job saves {len(saves)} times ({names}); expected 1 to {len(saves)}, or all"]
        )
    return [saves[request.save - 1]]


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _cut_for_real(
    request: Request, recordings: Recordings, window: SaveWindow, bench: Workbench, folder: Path, progress: exploring.Progress
) -> Part:
    folder.mkdir(parents=True)
    found = real_power_states(recordings, window, bench, folder, request.filesystem, _REAL_POINTS, progress)
    cases = tuple(Case(f"{cut.faults[0]}: {_what_survived(cut)}", cut.judged.verdict, cut.judged.path) for cut in found.cuts)
    notes = [found.sample, f"{len(found.cuts) - len(found.outside)} of {len(found.cuts)} left a state that the model builds"]
    notes += [f"not in the model: {case.path}" for case, cut in zip(cases, found.cuts, strict=True) if cut.survivors is None]
    return Part(f"real power cuts during {window.name}, on {request.filesystem}", None, cases, notes=tuple(notes))


def _what_survived(cut: RealCut) -> str:
    return f"kept {cut.survivors}" if cut.survivors is not None else f"lost {', '.join(cut.lost)}"


def _interleave(request: Request, recordings: Recordings, window: SaveWindow, bench: Workbench, until: float | None) -> Part:
    pattern = request.scenario.workload.commit_pattern
    cases, left_out = [], 0
    for number, one in enumerate(interleavings(recordings.points(window), pattern)):
        if until is not None and time.monotonic() > until:
            left_out += 1
            continue
        name = f"{request.scenario.name}-interleaving-{window.name}-{number}"
        scenario = request.scenario.model_copy(update={"name": name, "faults": one.faults})
        verdict, directory = run_case(scenario, bench)
        cases.append(Case(str(one), verdict, directory.path))
    return Part(f"interleavings of {window.name}", None, tuple(cases), left_out)


def _recoveries(
    request: Request,
    recordings: Recordings,
    window: SaveWindow,
    bench: Workbench,
    folder: Path,
    until: float | None,
    say: Say,
    progress: exploring.Progress,
) -> Iterator[Part]:
    points = recordings.points(window)
    for number, state in enumerate(untidy_states(points, request.scenario.workload.commit_pattern)):
        where = folder / f"recovery-{number}"
        where.mkdir(parents=True, exist_ok=True)
        recovery = exploring.record_recovery(recordings.recorded, state, bench, where)
        name = f"crash points of the recovery after '{state.faults[0]}'"
        say(name)
        first = recovery_window(recovery)
        states = exploring.explore(
            recovery,
            first,
            bench,
            where / "states",
            power=request.modelled,
            jobs=request.jobs,
            budget_s=_left(until),
            limit=request.limit,
            progress=progress,
        )
        yield Part(name, states)


def untidy_states(points: Points, pattern: str | None) -> list[CrashState]:
    """The two crash states whose recovery has most to do: right before the commit, and in the middle of the rotation after it."""
    states = [s for s in points.enumerate(power=False).states if s.natural and s.torn is None]
    commit = commit_of(points, pattern)
    if commit is None or not states:
        return states[len(states) // 2 : len(states) // 2 + 1]
    before = [state for state in states if not _has(points, state, commit)]
    removing = [s for s in states if _has(points, s, commit) and s.last is not None and s.last.operation in ("unlink", "rmdir")]
    return [*before[-1:], *removing[:1]]


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
