"""Every kind of damage to every file of the newest checkpoint, each followed by a real restart and judged.

Responsible for: the directory as it was when two checkpoints stood in it, one restart per damage, and grouping the failures by
what was done to which file. Not responsible for: which damages there are (`harness.damages`), what holds (`harness.judge`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import tree
from harness.case import Workbench, judge_stored
from harness.checkpoint_files import Entry, committed_entries
from harness.crash_states import CrashState
from harness.damages import Damage, Sampling, choose, count_possible, list_damages
from harness.explore import Recordings
from harness.fault import DamageFault
from harness.grammar import parse
from harness.inject import damage as at_rest
from harness.oracle.verdict import Verdict
from harness.plan import replay_line
from harness.scenario import Scenario
from harness.shard import Shard
from harness.staging import Recorded, stage, staged_plan
from harness.supervisor import run_attempts
from harness.workers import OutOfTime, run_all

Progress = Callable[[int, int, int], None]  # done, failing so far, all


@dataclass(frozen=True)
class Swept:
    """The verdict on one damage; `path` is its run directory."""

    damage: Damage
    verdict: Verdict
    path: Path


@dataclass(frozen=True)
class DamageCause:
    """Damages that lead to one failure.

    Attributes:
        kind: the failure kind.
        component: what was lost or damaged.
        text: what was done to which files, ranks and steps left open.
        num_cases: how many of those that were tried.
        first: the first of them, whose run directory is kept.
    """

    kind: str
    component: str
    text: str
    num_cases: int
    first: Swept


@dataclass(frozen=True)
class Sweep:
    """What came of it.

    Attributes:
        scenario: the job.
        checkpoint: the name of the checkpoint that was damaged.
        num_possible: damages of these kinds that exist, with every bit and every length.
        num_listed: those of them that were chosen to be tried.
        num_unchanged: those that changed no byte, and were not tried.
        judged: the others, with their verdicts.
        causes: of the failures, those with the most cases first.
        inconclusive: why nothing can be said, "" where it can.
        sweeping_s: seconds for all of it.
        left_out: damages that the budget did not reach.
        elsewhere: damages that are the other shares' to try.
    """

    scenario: Scenario
    checkpoint: str
    num_possible: int
    num_listed: int
    num_unchanged: int
    judged: tuple[Swept, ...]
    causes: tuple[DamageCause, ...]
    inconclusive: str = ""
    sweeping_s: float = 0.0
    left_out: int = 0
    elsewhere: int = 0

    @property
    def outcome(self) -> str:
        """PASS, FAIL or INCONCLUSIVE; nothing tried is nothing shown."""
        if self.causes:
            return "FAIL"
        undecided = self.inconclusive or self.left_out or any(one.verdict.outcome == "INCONCLUSIVE" for one in self.judged)
        return "INCONCLUSIVE" if undecided or not (self.judged or self.elsewhere) else "PASS"

    def describe(self) -> str:
        """The outcome in a few lines."""
        lines = [
            f"{self.outcome}: {len(self.judged)} damages of {self.checkpoint or 'no checkpoint'} in {self.sweeping_s:.1f} s",
            f"  {self.num_unchanged} changed nothing, {self.left_out} left out; {self.num_possible} exist",
        ]
        lines += [self.inconclusive] if self.inconclusive else []
        for cause in self.causes:
            lines.append(
                f"{cause.kind} of {cause.component}: {cause.text} ({cause.num_cases} case{'s' * (cause.num_cases != 1)})"
            )
            lines.append(f"  {cause.first.damage.sentence}; repeat: {replay_line(cause.first.verdict.replay)}")
        undecided = [one for one in self.judged if one.verdict.outcome == "INCONCLUSIVE"]
        lines += [f"undecided: {one.damage.sentence}: {one.verdict.findings[0].message}" for one in undecided]
        return "\n".join(lines)


def sweep(
    recordings: Recordings,
    bench: Workbench,
    folder: Path,
    *,
    seed: int = 0,
    jobs: int = 1,
    budget_s: float | None = None,
    sample: int | None = None,
    sampling: Sampling | None = None,
    only: str = "",
    shard: Shard | None = None,
    progress: Progress = lambda *_: None,
) -> Sweep:
    """Damages the newest checkpoint of a job in every way, each time anew, and restarts the job.

    Args:
        recordings: of the job; it must have had two checkpoints at some moment.
        bench: where cases run.
        folder: where run directories go; that of the first case of each cause is kept, and what could not be judged.
        seed: of all samples.
        jobs: restarts at a time.
        budget_s: stop starting restarts after so many seconds.
        sample: try so many of the listed damages only, something of every kind; None for all.
        sampling: how many bits and blocks per region, and how many pairs of files, are listed.
        shard: of what is listed, the share that is done here; None for all.
        only: list only damages whose text (`Damage.text`) holds this.
        progress: is told how many damages are done, how many fail, and how many there are.
    """
    began = time.monotonic()
    recorded = recordings.recorded
    folder.mkdir(parents=True, exist_ok=True)
    undamaged = folder / "undamaged"
    chosen = None if recordings.unseen else _moment(recordings, undamaged)
    if chosen is None:
        return Sweep(recorded.scenario, "", 0, 0, 0, (), (), _why_not(recordings), time.monotonic() - began)
    state, newest = chosen
    checkpoint = undamaged / newest.name
    damages = [damage for damage in list_damages(checkpoint, recorded.attempt + 1, seed, sampling) if only in damage.text]
    if sample is not None:
        damages = choose(damages, sample, seed)
    listed, damages = len(damages), damages if shard is None else _of_share(damages, shard)
    task = _Task(recorded, state, bench, folder, undamaged, None if budget_s is None else began + budget_s)
    judged, unchanged = _try_all(task, damages, jobs, progress)
    causes = find_damage_causes(judged)
    _tidy(judged, causes)
    possible = count_possible(checkpoint)
    shutil.rmtree(undamaged)
    return Sweep(
        recorded.scenario,
        newest.name,
        possible,
        listed,
        unchanged,
        tuple(judged),
        tuple(causes),
        sweeping_s=time.monotonic() - began,
        left_out=len(damages) - len(judged) - unchanged,
        elsewhere=listed - len(damages),
    )


def _of_share(damages: Sequence[Damage], shard: Shard) -> list[Damage]:
    own = shard.of(damage.sentence for damage in damages)
    return [damage for damage in damages if damage.sentence in own]


def _try_all(task: _Task, damages: Sequence[Damage], jobs: int, progress: Progress) -> tuple[list[Swept], int]:
    """The verdicts of those that the budget reached, and how many of these changed nothing."""
    judged: list[Swept] = []
    unchanged = failing = 0
    with contextlib.suppress(OutOfTime):  # what has been judged by then can be told
        for (_, damage), result in run_all(task, list(enumerate(damages)), jobs):
            if isinstance(result, _Unchanged):
                unchanged += 1
            elif result is not None:
                judged.append(Swept(damage, *result))
                failing += result[0].outcome == "FAIL"
            progress(len(judged) + unchanged, failing, len(damages))
    return judged, unchanged


def find_damage_causes(judged: Sequence[Swept]) -> list[DamageCause]:
    """The failures, grouped by what was done to which files and what came of it."""
    found: dict[tuple[str, str, str], list[Swept]] = {}
    for one in judged:
        if one.verdict.outcome == "FAIL":
            key = (one.verdict.kind or "", one.verdict.component, one.damage.text)
            found.setdefault(key, []).append(one)
    causes = [DamageCause(*key, len(members), members[0]) for key, members in found.items()]
    return sorted(causes, key=lambda cause: -cause.num_cases)


def _moment(recordings: Recordings, undamaged: Path) -> tuple[CrashState, Entry] | None:
    """The latest moment between two saves at which two checkpoints stood there; builds the directory of that moment."""
    recorded = recordings.recorded
    for window in reversed(recorded.trace.saves()[:-1]):
        state = recordings.points(window).finished()
        tree.build(state.tree, recorded.trace.data, undamaged)
        entries = committed_entries(undamaged)
        if len(entries) >= 2:
            return state, entries[-1]
    return None


def _why_not(recordings: Recordings) -> str:
    if recordings.unseen:
        return f"not everything that the job wrote was seen: {recordings.unseen[0]}"
    return (
        f"the job never had two committed checkpoints between two of its saves ({len(recordings.recorded.trace.saves())} seen); "
        "expected three saves at least, and that two of them are kept"
    )


class _Unchanged:
    """What a damage that changes no byte comes to."""


@dataclass(frozen=True)
class _Task:
    recorded: Recorded
    state: CrashState
    bench: Workbench
    folder: Path
    undamaged: Path
    until: float | None

    def __call__(self, numbered: tuple[int, Damage]) -> tuple[Verdict, Path] | _Unchanged | None:
        """Restarts after one damage; None where the time is up."""
        number, damage = numbered
        if self.until is not None and time.monotonic() > self.until:
            return None
        if not self._changes(number, damage):
            return _Unchanged()
        scenario = self.recorded.scenario
        name = f"{scenario.name}-{number:04d}-" + re.sub(r"[^A-Za-z0-9_.]+", "-", damage.sentence)
        harmed = scenario.model_copy(update={"faults": (*scenario.faults, damage.sentence)})
        plan = staged_plan(replace(self.recorded, scenario=harmed), self.state, name)
        directory = stage(self.recorded, self.state, self.folder / name, plan)
        run_attempts(plan, directory, self.bench.launcher(scenario), self.recorded.attempt + 1)
        return judge_stored(directory.path), directory.path

    def _changes(self, number: int, damage: Damage) -> bool:
        """Whether it changes any byte, tried on a copy."""
        copy = self.folder / f"copy-{number:04d}"
        shutil.copytree(self.undamaged, copy)
        fault = parse(damage.sentence)
        assert isinstance(fault, DamageFault)
        hit = at_rest.apply(fault, copy)
        shutil.rmtree(copy)
        return any(not item.unchanged for item in hit)


def _tidy(judged: Sequence[Swept], causes: Sequence[DamageCause]) -> None:
    kept = {cause.first.path for cause in causes}
    for one in judged:
        if one.verdict.outcome != "INCONCLUSIVE" and one.path not in kept:
            shutil.rmtree(one.path, ignore_errors=True)
