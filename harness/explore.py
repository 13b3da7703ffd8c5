"""Every crash state of a save, each given to a real resume and judged.

Responsible for: recording the job, enumerating the states, running one resume per distinct directory and one judgement per
distinct (directory, promises), in parallel. Not responsible for: what the states are (`harness.crash_states`), what holds
(`harness.judge`), or what a failure comes from (`harness.causes`).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import baseline
from harness.case import Workbench, check_environment, judge_stored
from harness.causes import Cause, Judged, find_causes
from harness.crash_sample import telling_first, whole_files
from harness.crash_states import CrashState, Enumeration, Points
from harness.errors import LaunchError, UsageError
from harness.oracle.verdict import Verdict
from harness.plan import make_plan
from harness.resaved import Usual, kill_after_unusual_save, usual_saves
from harness.scenario import Command, Scenario
from harness.shard import Shard
from harness.staging import Recorded, reuse, stage, staged_plan
from harness.store import RunDirectory, read_records
from harness.supervisor import Recording, run_attempts
from harness.trace import SaveWindow, Trace, first_difference, read_trace
from harness.workers import OutOfTime, run_all


@dataclass(frozen=True)
class Recordings:
    """The same job recorded several times: undisturbed, and once per writing rank with that rank always last.

    Attributes:
        recorded: the undisturbed run.
        traces: of all runs, the undisturbed one first.
        unstable: where they differ in what a rank did, in words; "" if they do not.
        unseen: what was written past the trace, in words.
        outside: files elsewhere that the job opened to write.
        usual: what it saves at each step.
    """

    recorded: Recorded
    traces: tuple[Trace, ...]
    unstable: str
    unseen: tuple[str, ...]
    outside: tuple[str, ...] = ()
    usual: Usual = field(default_factory=dict)

    def points(self, window: SaveWindow) -> Points:
        """The crash points of one save."""
        return Points(self.recorded.trace, self.traces[-1], self.traces, window, self.recorded.attempt)


@dataclass(frozen=True)
class Exploration:
    """What came of it.

    Attributes:
        scenario: the job.
        window: the save that was explored.
        enumeration: what there was.
        judged: one per distinct directory and promises.
        num_resumes: real resumes: one per distinct directory.
        causes: of the failures.
        inconclusive: why nothing can be said, "" where it can.
        exploring_s: seconds that all resumes and judgements took.
        left_out: distinct states that the budget did not reach.
        not_asked: distinct states that a sample leaves out.
        elsewhere: distinct states that are the other shares' to judge.
    """

    scenario: Scenario
    window: SaveWindow | None
    enumeration: Enumeration
    judged: tuple[Judged, ...]
    num_resumes: int
    causes: tuple[Cause, ...]
    inconclusive: str = ""
    exploring_s: float = 0.0
    left_out: int = 0
    not_asked: int = 0
    elsewhere: int = 0

    @property
    def num_states(self) -> int:
        """Distinct states, judged or not."""
        return len(self.judged) + self.left_out + self.not_asked + self.elsewhere

    @property
    def outcome(self) -> str:
        """PASS, FAIL or INCONCLUSIVE."""
        if self.causes:
            return "FAIL"
        undecided = self.inconclusive or self.left_out or any(j.verdict.outcome == "INCONCLUSIVE" for j in self.judged)
        return "INCONCLUSIVE" if undecided else "PASS"


Progress = Callable[[int, int, int], None]  # done, failing so far, all


def record(scenario: Scenario, bench: Workbench, folder: Path, *, once: bool = False) -> Recordings:
    """Runs a job undisturbed (the golden run, if there is none yet), then as `record_runs` does.

    Args:
        scenario: the job.
        bench: where cases run.
        folder: where the run directories go.
        once: do not run it again; nothing is then known of other orders of the ranks, nor of names that are drawn anew.

    Raises:
        LaunchError, UsageError, CapabilityError: it could not be run.
    """
    check_environment(scenario)
    _, golden = baseline.obtain(scenario, bench.baselines, bench.launcher(baseline.golden_scenario(scenario)))
    return record_runs(scenario, bench, folder, once=once, golden=golden)


def record_runs(
    scenario: Scenario, bench: Workbench, folder: Path, *, once: bool = False, golden: Path | None = None
) -> Recordings:
    """Runs a job undisturbed, and again with each writing rank made to come last, and records all of it.

    Args:
        scenario: the job.
        bench: where it runs.
        folder: where the recordings go.
        once: only the undisturbed run.
        golden: the golden run, which then stands beside each recording: whoever watches the job from inside knows by it.

    Raises:
        LaunchError, UsageError, CapabilityError: it could not be run.
    """
    # Names of one length: DCP writes the directory's own path into a checkpoint, and sizes are compared.
    first = _record_once(scenario, bench, folder / "recorded-00", Recording(), golden)
    writers = first.trace.ranks
    again = [] if once else [None] if len(writers) < 2 else writers
    others = [
        _record_once(scenario, bench, folder / f"recorded-{number:02d}", Recording(last), golden)
        for number, last in enumerate(again, 1)
    ]
    return _compared(first, others, again)


def _compared(first: Recorded, others: Sequence[Recorded], last_ranks: Sequence[int | None]) -> Recordings:
    traces = (first.trace, *(other.trace for other in others))
    found = [(first_difference(first.trace, other.trace), last) for other, last in zip(others, last_ranks, strict=True)]
    unstable = next((text + _of_order(last) for text, last in found if text), "")
    records = [record for one in (first, *others) for record in read_records(one.folder / "attempt.jsonl")[0]]
    unseen = tuple(dict.fromkeys(str(record["what"]) for record in records if record["event"] == "escaped"))
    outside = tuple(dict.fromkeys(path for record in records if record["event"] == "outside" for path in record["paths"]))
    usual = usual_saves([one.folder for one in (first, *others)])
    return Recordings(first, traces, unstable, unseen, outside, usual)


def _of_order(last: int | None) -> str:
    if last is None:
        return ""
    order = f"every operation of rank {last} waited there until the other ranks could go on no further"
    return f" ({order}: if what is written depends on which rank comes first, a barrier is missing)"


def _record_once(scenario: Scenario, bench: Workbench, path: Path, recording: Recording, golden: Path | None) -> Recorded:
    plan = make_plan(scenario)
    directory = RunDirectory.create(path, plan)
    if golden is not None:
        shutil.copytree(golden, directory.golden)
    run_attempts(plan, directory, bench.launcher(scenario), recording=recording)
    return _read_recorded(scenario, directory, 0)


def _read_recorded(scenario: Scenario, directory: RunDirectory, attempt: int) -> Recorded:
    folder = directory.attempt(attempt)
    records, _ = read_records(folder / "operations.jsonl")
    ended = [record for record in read_records(folder / "attempt.jsonl")[0] if record["event"] == "ended"]
    if not ended or ended[-1].get("outcome") != "done":
        raise _failed(scenario, folder)
    return Recorded(scenario, directory, attempt, read_trace(folder, records))


def _failed(scenario: Scenario, folder: Path) -> UsageError | LaunchError:
    said = [
        line for file in sorted(folder.glob("*.stderr")) for line in file.read_text(errors="replace").strip().splitlines()[-6:]
    ]
    last = "\n  ".join(said) or "(nothing)"
    text = f"the job did not come to its end although nothing was done to it; see {folder}; its last words:\n  {last}"
    return UsageError([text]) if isinstance(scenario.workload, Command) else LaunchError(text)


def record_recovery(recorded: Recorded, state: CrashState, bench: Workbench, folder: Path) -> Recordings:
    """The restart after a crash, recorded as `record` does: its own crash points are those of a recovery.

    Raises:
        LaunchError: it does not come to its end.
    """
    runs: list[Recorded] = []
    last_ranks: list[int | None] = [None]
    while len(runs) < len(last_ranks):
        number = len(runs)
        scenario = recorded.scenario.model_copy(
            update={"faults": (*recorded.scenario.faults, *state.faults), "max_attempts": recorded.attempt + 3}
        )
        plan = make_plan(scenario.model_copy(update={"name": f"{scenario.name}-recovery-{number:02d}"}))
        directory = stage(recorded, state, folder / f"recovery-{number:02d}", plan)
        attempt = recorded.attempt + 1
        run_attempts(plan, directory, bench.launcher(scenario), attempt, Recording(last_ranks[number]))
        runs.append(_read_recorded(scenario, directory, attempt))
        if number == 0:
            writers = runs[0].trace.ranks
            last_ranks += list(writers) if len(writers) > 1 else [None]
    return _compared(runs[0], runs[1:], last_ranks[1:])


def explore(
    recordings: Recordings,
    window: SaveWindow,
    bench: Workbench,
    folder: Path,
    *,
    kill: bool = True,
    power: bool = True,
    jobs: int = 1,
    budget_s: float | None = None,
    limit: int | None = None,
    shard: Shard | None = None,
    own_limit: int | None = None,
    known: Sequence[Cause] = (),
    progress: Progress = lambda *_: None,
) -> Exploration:
    """Explores one save.

    Args:
        recordings: of the job.
        window: the save.
        bench: where cases run.
        folder: where the run directories of the cases go; those that pass are removed again.
        kill: the states after the death of all processes.
        power: those after a power cut.
        jobs: resumes at a time.
        budget_s: stop starting resumes after so many seconds; those that run when `harness.workers.ended_at` ends are given up.
        limit: at most so many resumes, the most telling ones; None for all.
        shard: of these, the share that is done here; None for all.
        own_limit: at most so many resumes of the share.
        known: what kills in this save have shown, where they were explored apart.
        progress: is told how many states are judged, how many of them fail, and how many there are.
    """
    began = time.monotonic()
    if why := _why_not(recordings):
        return Exploration(recordings.recorded.scenario, window, Enumeration((), 0, 0, 0), (), 0, (), why)
    points = recordings.points(window)
    enumeration = points.enumerate(kill=kill, power=power)
    everything = _groups(enumeration.states, points)
    groups = everything[:limit] if shard is None else _share(everything[:limit], shard)
    elsewhere = _size(everything[:limit]) - _size(groups)
    groups = groups[:own_limit]
    folder.mkdir(parents=True, exist_ok=True)
    task = _Task(recordings.recorded, bench, folder, recordings.usual, None if budget_s is None else began + budget_s)
    judged, num_resumes = _judge_all(task, groups, jobs, progress)
    whole = whole_files(points.before, points.finished().tree)
    causes = find_causes(judged, recordings.recorded.trace, points.order, known, whole)
    _tidy(judged, causes)
    return Exploration(
        recordings.recorded.scenario,
        window,
        enumeration,
        tuple(judged),
        num_resumes,
        tuple(causes),
        exploring_s=time.monotonic() - began,
        left_out=_size(groups) - len(judged),
        not_asked=_size(everything) - _size(groups) - elsewhere,
        elsewhere=elsewhere,
    )


def _judge_all(task: _Task, groups: Sequence[Group], jobs: int, progress: Progress) -> tuple[list[Judged], int]:
    """The verdicts on those that the budget reaches, and how many resumes that took."""
    judged: list[Judged] = []
    num_resumes = failing = 0
    with contextlib.suppress(OutOfTime):  # what has been judged by then can be told
        for (_, group), results in run_all(task, list(enumerate(groups)), jobs):
            num_resumes += bool(results)
            for members, (verdict, path) in zip(group, results, strict=False):
                judged.append(Judged(members[0], len(members), verdict, path, members))
                failing += verdict.outcome != "PASS"
            progress(len(judged), failing, _size(groups))
    return judged, num_resumes


def _why_not(recordings: Recordings) -> str:
    if recordings.unseen:
        return f"not everything that the job wrote was seen: {recordings.unseen[0]}"
    if recordings.unstable:
        return f"the job does not write the same in every run: {recordings.unstable}"
    if not recordings.recorded.trace.operations:
        return no_checkpoint(recordings.recorded.directory.checkpoints, recordings.outside)
    return ""


def no_checkpoint(directory: Path, outside: Sequence[str]) -> str:
    """That a job wrote no checkpoint, what it wrote instead, and what to do, in words."""
    if not outside:
        return f"the job wrote no file at all, so no checkpoint below {directory} either; expected it to save there ({{ckpt}})"
    elsewhere = ", ".join(outside[:3])
    return (
        f"the job wrote nothing below its checkpoint directory {directory}; it wrote elsewhere: {elsewhere}. Pass {{ckpt}} to it"
    )


Group = list[list[CrashState]]  # of one directory: per kind of promises, the states that are equal


def _groups(states: Sequence[CrashState], points: Points) -> list[Group]:
    """All states, those of one directory together, the most telling first."""
    by_digest: dict[str, dict[tuple[str, ...], list[CrashState]]] = {}
    for state in states:
        by_digest.setdefault(state.digest, {}).setdefault(state.owed, []).append(state)
    # The first of equal states is the one that is staged and kept: the plainest way to get there.
    groups = [[sorted(members, key=_plainness) for members in found.values()] for found in by_digest.values()]
    order = telling_first([group[0][0].tree for group in groups], points.before, points.finished().tree)
    return [groups[place] for place in order]


def _plainness(state: CrashState) -> tuple[bool, bool, bool]:
    return state.survivors is not None, state.torn is not None, not state.natural


def _size(groups: Sequence[Group]) -> int:
    return sum(map(len, groups))


def _share(groups: Sequence[Group], shard: Shard) -> list[Group]:
    """Those of one share. A group goes by the sentences of its states, which are the same on every machine."""
    keys = [min("; ".join(state.faults) for members in group for state in members) for group in groups]
    own = shard.of(keys)
    return [group for key, group in zip(keys, groups, strict=True) if key in own]


@dataclass(frozen=True)
class _Task:
    recorded: Recorded
    bench: Workbench
    folder: Path
    usual: Usual
    until: float | None

    def __call__(self, numbered: tuple[int, Group]) -> list[tuple[Verdict, Path]]:
        """Resumes once from the directory that the group's states share, and judges each kind of promises."""
        number, group = numbered
        if self.until is not None and time.monotonic() > self.until:
            return []
        results: list[tuple[Verdict, Path]] = []
        first: RunDirectory | None = None
        for place, members in enumerate(group):
            name = f"{self.recorded.scenario.name}-{number:04d}" + (f".{place}" if place else "")
            if first is None:
                first = self._resume(members[0], name)
                results.append(self._judged(first, members[0], name))
            else:
                directory = stage(self.recorded, members[0], self.folder / name, staged_plan(self.recorded, members[0], name))
                reuse(first, directory, self.recorded.attempt + 1)
                results.append((judge_stored(directory.path), directory.path))
        return results

    def _resume(self, state: CrashState, name: str, later: str = "") -> RunDirectory:
        plan = staged_plan(self.recorded, state, name, later)
        directory = stage(self.recorded, state, self.folder / name, plan)
        run_attempts(plan, directory, self.bench.launcher(self.recorded.scenario), self.recorded.attempt + 1)
        return directory

    def _judged(self, directory: RunDirectory, state: CrashState, name: str) -> tuple[Verdict, Path]:
        """The verdict; where all is well but another thing was saved than usual, that of a restart from there if it is worse."""
        verdict = judge_stored(directory.path)
        steps = self.recorded.scenario.workload.steps
        after = (directory, self.recorded.attempt + 1, self.usual, steps)
        if verdict.outcome == "PASS" and (later := kill_after_unusual_save(*after)):
            again = self._resume(state, f"{name}-resaved", later)
            worse = judge_stored(again.path)
            if worse.outcome == "FAIL":
                return worse, again.path
            shutil.rmtree(again.path)
        return verdict, directory.path


def _tidy(judged: Sequence[Judged], causes: Sequence[Cause]) -> None:
    """Keeps what is wrong and can be looked at: per cause the first cases; and everything that nobody could judge."""
    kept = {path for cause in causes for path in cause.kept}
    for one in judged:
        if one.verdict.outcome != "INCONCLUSIVE" and one.path not in kept:
            shutil.rmtree(one.path, ignore_errors=True)
