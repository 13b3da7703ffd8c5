"""Real power cuts at a sample of the points of a save, beside the states that the model builds for them.

Responsible for: choosing the points, cutting the power of a real ext4 or XFS disk there, saying for each whether what the file
system kept is a state of the model, resuming the job from it, and the verdict on that.
Not responsible for: all that a power cut may leave: a real one leaves one state of many, and another one the next time
(`harness.explore` goes through all that the model knows).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import tree
from harness.case import Workbench, judge_stored
from harness.causes import Judged
from harness.crash import Model
from harness.crash_states import CrashState
from harness.errors import LaunchError
from harness.explore import Recordings
from harness.fault import PowerCutFault, SignalFault, Survivors
from harness.grammar import parse
from harness.plan import make_plan
from harness.staging import Recorded
from harness.store import RunDirectory, read_records
from harness.supervisor import run_attempts
from harness.trace import SaveWindow


@dataclass(frozen=True)
class RealCut:
    """One real power cut, and the resume from what it left.

    Attributes:
        judged: the verdict; its state is that of the model where it has this one, else that of the death of all processes.
        faults: the sentences that brought it about.
        survivors: what the file system kept, in the words of the model; None where the model has no such state.
        lost: paths that are not as they were at the moment of the cut; empty where all survived.
    """

    judged: Judged
    faults: tuple[str, ...]
    survivors: Survivors | None
    lost: tuple[str, ...]


@dataclass(frozen=True)
class RealPower:
    """What came of it.

    Attributes:
        filesystem: ext4 or xfs.
        num_points: between operations, in the order of the undisturbed run, at which something is unsynced.
        sample: which of them were taken, in words.
        cuts: one per point that was taken.
    """

    filesystem: str
    num_points: int
    sample: str
    cuts: tuple[RealCut, ...]

    @property
    def outside(self) -> tuple[RealCut, ...]:
        """The cuts that left what the model does not build: a gap in the model, not a fault of the job."""
        return tuple(cut for cut in self.cuts if cut.survivors is None)

    @property
    def judged(self) -> tuple[Judged, ...]:
        """All verdicts."""
        return tuple(cut.judged for cut in self.cuts)


Progress = Callable[[int, int, int], None]  # done, failing so far, all


def real_power_states(
    recordings: Recordings,
    window: SaveWindow,
    bench: Workbench,
    folder: Path,
    filesystem: str,
    points_limit: int,
    progress: Progress = lambda *_: None,
) -> RealPower:
    """Cuts the power for real at some points of a save, and resumes the job from what is left.

    Args:
        recordings: of the job (`harness.explore.record`).
        window: the save.
        bench: where cases run.
        folder: where the run directories of the cases go; all are kept.
        filesystem: ext4 or xfs.
        points_limit: at most so many points, evenly spread from the first to the last.
        progress: is told how many cuts are judged, how many of them fail, and how many there are.

    Raises:
        CapabilityError: this machine cannot do it; the text says what is missing.
        LaunchError: a job could not be run, or the power could not be cut.
    """
    states = recordings.points(window).enumerate(kill=True, power=True).states
    variants = [state for state in states if state.survivors is not None]
    risky = {state.cut for state in variants}
    points = [s for s in states if s.survivors is None and s.torn is None and s.natural and s.cut in risky]
    chosen = evenly(points, points_limit)
    cuts: list[RealCut] = []
    for number, state in enumerate(chosen):
        name = f"{recordings.recorded.scenario.name}-{filesystem}-{number:03d}"
        own = [variant for variant in variants if variant.cut == state.cut]
        cuts.append(_cut_once(recordings.recorded, state, own, bench, folder / name, filesystem))
        progress(len(cuts), sum(cut.judged.verdict.outcome != "PASS" for cut in cuts), len(chosen))
    which = f"{len(chosen)} of {len(points)} points at which something is unsynced, evenly spread over the save"
    return RealPower(filesystem, len(points), which, tuple(cuts))


def evenly(points: Sequence[CrashState], limit: int) -> list[CrashState]:
    """At most so many of them, evenly spread, the first and the last included."""
    if limit >= len(points):
        return list(points)
    if limit <= 1:
        return list(points[-limit:]) if limit == 1 else []
    return [points[round(number * (len(points) - 1) / (limit - 1))] for number in range(limit)]


def real_sentences(state: CrashState, filesystem: str) -> tuple[str, ...]:
    """The sentences that cut the power of a real disk where those of a state kill all processes."""
    kill = parse(state.faults[0])
    if not isinstance(kill, SignalFault):
        raise TypeError(f"{state.faults[0]!r} is no death of processes; expected a state without losses")
    cut = PowerCutFault(None, filesystem, kill.point, kill.trigger, kill.attempt, kill.patient)
    return (str(cut), *state.faults[1:])


def _cut_once(
    recorded: Recorded, state: CrashState, variants: Sequence[CrashState], bench: Workbench, path: Path, filesystem: str
) -> RealCut:
    faults = real_sentences(state, filesystem)
    attempts = max(recorded.scenario.max_attempts, recorded.attempt + 2)
    scenario = recorded.scenario.model_copy(
        update={"name": path.name, "faults": (*recorded.scenario.faults, *faults), "max_attempts": attempts}
    )
    plan = make_plan(scenario)
    directory = RunDirectory.create(path, plan)
    _as_before(recorded, directory)
    run_attempts(plan, directory, bench.launcher(scenario), recorded.attempt)
    verdict = judge_stored(path)
    survivors, lost = _what_was_left(directory.attempt(recorded.attempt))
    same = next((variant for variant in variants if variant.survivors == survivors), state)
    found = replace(same, faults=faults)
    return RealCut(Judged(found, 1, verdict, path, [found]), faults, survivors, lost)


def _as_before(recorded: Recorded, directory: RunDirectory) -> None:
    """The golden run, the attempts before the recorded one, and the checkpoint directory as that one found it."""
    shutil.copytree(recorded.directory.golden, directory.golden, copy_function=os.link)
    for index in range(recorded.attempt):
        shutil.copytree(recorded.directory.attempt(index), directory.attempt(index), copy_function=os.link)
    tree.build(Model.of(recorded.trace).everything(), recorded.trace.data, directory.checkpoints)


def _what_was_left(attempt: Path) -> tuple[Survivors | None, tuple[str, ...]]:
    records, _ = read_records(attempt / "attempt.jsonl")
    record = next((record for record in records if record["event"] == "power"), None)
    if record is None:
        # The fault did not fire, and the verdict says so: all is there.
        if not any(record["event"] == "ended" for record in records):
            raise LaunchError(f"{attempt} has no end; expected an attempt that was run to its end")
        return Survivors(), ()
    words = record["survivors"]
    cut = None if words is None else parse(f"power-cut keeping {words} at step 1")
    survivors = cut.survivors if isinstance(cut, PowerCutFault) else None
    return survivors, tuple(record["lost"])
