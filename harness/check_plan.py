"""Which cases a command is put through by default, and in which order: the worst and most informative ones first.

Responsible for: reading off the uninterrupted run when the job saves, and writing each case as sentences of `harness.grammar`.
Pure. Not responsible for: running them (`harness.check_command`), or the crash states of a save (`harness.explore`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.checkpoint_files import age_of, top_level
from harness.fault import OperationPoint
from harness.oracle.exports import exported, names_in, sort_of
from harness.store import Baseline, Record
from harness.trace import Operation, SaveWindow, Trace

CONTROL, KILLS, AGAIN, HUNG = "control", "kill between two saves", "a second interruption", "a rank that hangs"
ASKED, ASKED_TWICE = "SIGTERM", "SIGTERM twice"
OTHERWISE = "the same work done otherwise"
ERRORS, DAMAGE, OVERFLOW, SIZES = "errors of the disk", "damage at rest", "an overflow batch", "other numbers of ranks"
# What fails once during the attacked save. A write in its middle is the one that most trainers do not expect.
_FAILING = (("ENOSPC", "write"), ("EIO", "fsync"), ("EIO", "rename"), ("ENOSPC", "open"))
_EARLY_STEP = 2


@dataclass(frozen=True)
class Planned:
    """One case.

    Attributes:
        part: which part of the check it belongs to.
        title: what is done, in words.
        faults: the sentences.
        world_sizes: ranks of each attempt; empty for those of the job.
        expect: as of `harness.scenario.Scenario`.
        max_attempts: launches.
        compare_with: as of `harness.scenario.Scenario`.
        owed: whether a checkpoint stands when the job is first restarted, so that it has something to resume from.
    """

    part: str
    title: str
    faults: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    expect: Literal["resumes", "resumes-or-refuses"] = "resumes"
    max_attempts: int = 3
    compare_with: Literal["same", "control"] = "same"
    owed: bool = False


@dataclass(frozen=True)
class Saved:
    """A save of the uninterrupted run.

    Attributes:
        name: of the checkpoint.
        step: updates done when it began.
        known: the first step after which it is known to be done; None where the job ended before.
    """

    name: str
    step: int
    known: int | None


@dataclass(frozen=True)
class Job:
    """What the uninterrupted run tells of a job.

    Attributes:
        ranks: how many.
        steps: updates in all.
        batches: batches in all.
        saves: in order.
        scaled: whether its losses are scaled by a GradScaler.
        told: the steps that rank 0's log tells of: all, or those that a trainer's own log has a line for.
    """

    ranks: int
    steps: int
    batches: int
    saves: tuple[Saved, ...]
    scaled: bool
    told: tuple[int, ...] = ()

    @classmethod
    def of(cls, baseline: Baseline) -> Job:
        """Reads the logs of all ranks; rank 0's says when it saves. What is no checkpoint is no save to be attacked."""
        logs = baseline.ranks
        if 0 not in logs:
            return cls(len(logs), 0, 0, (), False)
        batches = logs[0].batches
        scaled = any(batch.scale is not None for batch in batches)
        last = batches[-1] if batches else None
        told = tuple(dict.fromkeys(batch.step for batch in batches))
        return cls(
            len(logs),
            last.step if last else 0,
            last.batch if last else 0,
            _saves(logs[0].records, exported(baseline)),
            scaled,
            told,
        )

    def told_from(self, step: int) -> int:
        """The first step from this one on at which a rank can be stopped; the last one where there is none."""
        return next((known for known in self.told if known >= step), self.steps)

    @property
    def attacked(self) -> Saved | None:
        """The save after which the job is killed: the second where something is trained after it, else the last such."""
        known = [save for save in self.saves[:2] if save.known is not None and save.known < self.steps]
        return known[-1] if known else None

    @property
    def latest(self) -> Saved | None:
        """The last save after which something is trained: old checkpoints have been removed by then, if they ever are."""
        known = [save for save in self.saves if save.known is not None and save.known < self.steps]
        return known[-1] if known else None


def _saves(records: Sequence[Record], exports: Container[str]) -> tuple[Saved, ...]:
    """The saves whose end was reported; the batch that follows is the first at which a kill finds them owed."""
    found: list[Saved] = []
    waiting: list[tuple[str, int]] = []
    for record in records:
        if record["event"] == "save" and record.get("moment") == "end":
            names = [name for name in names_in(record) if sort_of(name) not in exports]
            waiting += [(name, int(record["step"])) for name in names[:1]]
        elif record["event"] == "batch" and record.get("tag") == "STEP":
            found += [Saved(name, step, int(record["step"])) for name, step in waiting]
            waiting = []
    return (*found, *(Saved(name, step, None) for name, step in waiting))


def first_cases(job: Job) -> list[Planned]:
    """What is tried before anything else: nothing, kills away from any save, and one request to end."""
    cases = [Planned(CONTROL, "the job as it is, undisturbed", max_attempts=1)]
    save = job.attacked
    if save is not None:
        title = f"killed at step {save.known}, right after {save.name} was saved"
        cases.append(Planned(KILLS, title, (_kill(save.known),), owed=True))
        middle = _middle(job, save)
        if middle is not None:
            cases.append(Planned(KILLS, f"killed at step {middle}, in the middle between two saves", (_kill(middle),), owed=True))
        latest = job.latest
        if latest is not None and latest != save:
            title = f"killed at step {latest.known}, right after {latest.name} was saved, when old ones have been removed"
            cases.append(Planned(KILLS, title, (_kill(latest.known),), owed=True))
    elif len(job.told) > 1:  # what it writes when is unknown, but by then it has most probably saved
        late = job.told[-2]
        cases.append(Planned(KILLS, f"killed at step {late}, the last but one", (_kill(late),), owed=True))
    first = job.told_from(min([job.saves[0].step if job.saves else job.steps, _EARLY_STEP, job.steps]))
    if first >= 1 and (_kill(first),) not in [case.faults for case in cases]:
        where = ", before the first save" if job.saves else ""  # a log says nothing of saves
        cases.append(Planned(KILLS, f"killed at step {first}{where}", (_kill(first),)))
    if asked_at(job):
        step = asked_at(job)
        cases.append(Planned(ASKED, f"asked to end (SIGTERM) at step {step}", (_ask(step),), owed=save is not None))
    return cases


def asked_at(job: Job) -> int:
    """The step at which the job is asked to end: between two saves, where a save of its own accord is seen; 0 for none."""
    save = job.attacked
    if save is None or save.known is None:
        return job.told_from(1) if job.steps > 1 else 0
    return _middle(job, save) or save.known


def second_request(job: Job, operations: Sequence[Record], last_step: int) -> Planned | None:
    """A second SIGTERM after the first, as the job answered that one.

    Args:
        job: the job.
        operations: file operations of the attempt that was asked to end once.
        last_step: the last step that this attempt has done.

    Returns:
        The case: the second comes in the middle of what the job writes when it is asked, or at its next step; None where the
        first one ends it at once, so that there is no moment for a second.
    """
    step = asked_at(job)
    writes, after = _writes_after(operations, step)
    if after:
        rank, pattern, count = writes[len(writes) - (after + 1) // 2]
        second = f"sigterm all ranks before write {pattern}" + (f" occurrence {count}" if count > 1 else "") + f" by rank {rank}"
        return Planned(ASKED_TWICE, f"asked twice: again while it saves for the first request ({pattern})", (_ask(step), second))
    if last_step > step:
        return Planned(ASKED_TWICE, f"asked twice: at steps {step} and {step + 1}", (_ask(step), _ask(step + 1)))
    return None


def _writes_after(operations: Sequence[Record], step: int) -> tuple[list[tuple[int, str, int]], int]:
    """Rank, pattern and occurrence of each write of rank 0, and how many come after the log says that this step was done."""
    found: list[tuple[int, str, int]] = []
    counts: dict[str, int] = {}
    after, asked = 0, False
    for record in operations:
        if record["event"] == "mark":
            asked = asked or (record.get("what") == "batch" and record.get("step") == step)
        elif record.get("operation") == "write" and record.get("rank") == 0:
            pattern = any_number(str(record["path"]))
            counts[pattern] = counts.get(pattern, 0) + 1
            found.append((0, pattern, counts[pattern]))
            after += asked
    return found, after


def later_cases(job: Job, sizes: Sequence[int]) -> list[Planned]:
    """What needs the uninterrupted run alone, in order; `sizes` are the other numbers of ranks to resume on."""
    save = job.attacked
    if save is None or save.known is None:
        return []
    cases = []
    again = save.step + 1
    if again <= job.steps:
        faults = (_kill(save.known), f"sigkill all ranks at step {again} by rank 0 attempt 1")
        title = f"killed at step {save.known}, and again at the first step after the resume"
        cases.append(Planned(AGAIN, title, faults, max_attempts=4, owed=True))
    if job.ranks > 1:
        last = job.ranks - 1
        title = f"rank {last} stops at step {save.known} and says nothing (SIGSTOP)"
        cases.append(Planned(HUNG, title, (f"sigstop rank {last} at step {save.known}",), owed=True))
    if job.scaled:
        cases += _overflows(job)
    for size in sizes:
        title = f"killed at step {save.known} on {_ranks(job.ranks)}, resumed on {_ranks(size)}"
        cases.append(Planned(SIZES, title, (_kill(save.known),), (job.ranks, size), "resumes-or-refuses", owed=True))
    return cases


def done_otherwise() -> Planned:
    """The undisturbed job beside the command that does the same work otherwise: without saving, say, which changes no number."""
    return Planned(OTHERWISE, "undisturbed, beside the control command", compare_with="control", max_attempts=1)


def _overflows(job: Job) -> list[Planned]:
    """A batch that overflows before a save, and a kill after that save: the smaller scale must have been saved with it."""
    save = job.attacked
    if save is None or save.known is None or save.step < 2:
        return []
    # The skipped batch completes no step, so that the same number of batches ends one step earlier.
    step = save.known + 1 if save.known + 1 < job.steps - 1 else save.known
    # Infinite gradients, and not a large factor: how large a loss must be to overflow, depends on the job's precision.
    faults = (
        f"nonfinite-grad all ranks at batch {save.step - 1}",
        f"sigkill all ranks at step {min(step, job.steps - 1)} by rank 0",
    )
    return [
        Planned(OVERFLOW, f"the gradients of batch {save.step - 1} overflow, and the job is killed after the next save", faults)
    ]


def cut_restart(trace: Trace, saves: Sequence[SaveWindow], known: int) -> Planned | None:
    """A kill in the first save after a restart, in the middle of its writes; None where no save writes anything."""
    if len(saves) < 2:
        return None
    own = [event for event in trace.events[: saves[0].stop] if isinstance(event, Operation) and event.rank == 0]
    inside = {event.n for event in trace.events[saves[0].start : saves[0].stop] if isinstance(event, Operation)}
    writes = [op for op in own if op.operation == "write" and op.n in inside]
    if not writes:
        return None
    sentence = _nth("sigkill all ranks before", writes[len(writes) // 2], own) + " by rank 0 attempt 1"
    title = f"killed at step {known}, and again in the middle of the first save after the resume"
    return Planned(AGAIN, title, (_kill(known), sentence), max_attempts=4, owed=True)


def failing_operations(trace: Trace, window: SaveWindow) -> list[Planned]:
    """One failure of each sort during a save."""
    own = [op for op in trace.operations if op.rank == 0]
    inside = {event.n for event in trace.events[window.start : window.stop] if isinstance(event, Operation)}
    cases = []
    for error, family in _FAILING:
        found = [op for op in own if op.n in inside and op.operation == family and not op.error]
        if found:
            sentence = _nth(f"{error} rank 0 on", found[len(found) // 2], own)
            title = f"{error} at {_a(family)} of the save of {window.name} ({any_number(found[len(found) // 2].names[-1])})"
            cases.append(Planned(ERRORS, title, (sentence,)))
    return cases


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _nth(start: str, operation: Operation, own: Sequence[Operation]) -> str:
    """The sentence of an operation by its family, its path with numbers left open, and its place among those of its rank."""
    pattern = any_number(operation.names[-1])
    point = OperationPoint(operation.operation, pattern)
    count = sum(point.matches(op.operation, op.names) for op in own if op.n <= operation.n)
    return f"{start} {operation.operation} {pattern}" + (f" occurrence {count}" if count > 1 else "")


def damages(job: Job, sizes: Mapping[str, int], standing: Sequence[str]) -> list[Planned]:
    """What may become of the newest checkpoint between two launches.

    Args:
        job: the job.
        sizes: path → bytes, of the files of the checkpoint that was saved before the kill, under whatever names.
        standing: top-level names of the checkpoint directory then.

    Returns:
        The newest cut short, a bit of it flipped, and a file missing where it has several; nothing where the newest checkpoint
        cannot be told by its name.
    """
    save = job.attacked
    newest = max(standing, key=age_of, default="")
    sizes = {path: size for path, size in sizes.items() if top_level(path) == newest}
    if save is None or save.known is None or not sizes:
        return []
    largest = max(sizes, key=lambda path: sizes[path])
    smallest = min(sizes, key=lambda path: sizes[path])
    kill = _kill(save.known)

    def case(title: str, fault: str) -> Planned:
        return Planned(DAMAGE, f"killed at step {save.known}, then {title}", (kill, fault), expect="resumes-or-refuses")

    def inside(path: str) -> str:
        return "newest" if path == newest else f"newest/{path.removeprefix(newest + '/')}"

    cases = [
        case(f"{largest} is cut to half", f"truncate {inside(largest)} to 50%"),
        case(f"a bit of {largest} is flipped", f"flip {inside(largest)} at 60% bit 3"),
    ]
    if len(sizes) > 1:
        cases.append(case(f"{smallest} is missing", f"delete {inside(smallest)}"))
    return cases


def other_sizes(ranks: int, asked: Sequence[int] | None) -> tuple[int, ...]:
    """The numbers of ranks to resume on: those asked for, or one and twice as many."""
    return tuple(size for size in dict.fromkeys(asked if asked is not None else (1, 2 * ranks)) if size != ranks)


def fitting(sizes: Sequence[int], rank_bytes: float, free_bytes: float) -> tuple[tuple[int, ...], list[str]]:
    """The numbers of ranks that the memory has room for, and in words those that it has not.

    Args:
        sizes: numbers of ranks.
        rank_bytes: what the largest process of the undisturbed run had in memory.
        free_bytes: what may be used.
    """
    notes = [
        f"{_ranks(size)}: they would need {size * rank_bytes / 2**30:.1f} GiB, by the memory of a process of the undisturbed "
        f"run; {free_bytes / 2**30:.1f} GiB are free"
        for size in sizes
        if size * rank_bytes > free_bytes
    ]
    return tuple(size for size in sizes if size * rank_bytes <= free_bytes), notes


# With a digit and a letter at least; a word is none.
_DIGEST = r"(?<![0-9A-Za-z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{6,}(?![0-9A-Za-z])"
_DRAWN = r"(?<=tmp)[a-z0-9_]{8}(?![0-9A-Za-z_])"


def any_number(path: str) -> str:
    """A path as a pattern, numbers, digests, names that `tempfile` draws, and white space left open."""
    return re.sub(rf"{_DIGEST}|{_DRAWN}|[0-9]+|[\s,]+", "*", path)


def _middle(job: Job, save: Saved) -> int | None:
    """The step in the middle between a save and the next one, or the end; None where it is the step after the save."""
    later = [other.step for other in job.saves if other.step > save.step]
    middle = (save.step + (later[0] if later else job.steps) + 1) // 2
    return middle if save.known is not None and save.known < middle < job.steps else None


def _kill(step: int | None) -> str:
    return f"sigkill all ranks at step {step} by rank 0"


def _ask(step: int) -> str:
    return f"sigterm all ranks at step {step} by rank 0"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"
