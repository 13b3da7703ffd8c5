"""Schedules of several faults over several attempts, drawn by hypothesis from what is known of a job.

Responsible for: faults that can happen where the job will be, by a simulation of where each attempt begins, and what is then
owed. The same job and seed give the same schedules. Not responsible for: which of several drawn schedules is run
(`harness.chaos.coverage.choose`), or running it.

Fault model: one fault at a time ends an attempt (a kill of one rank or of all, a request to end, an error of the disk, a disk
that is full); beside it an operation may be held, a write cut short without harm. Between attempts files are damaged and ranks
come and go. Not drawn: what ends in a wait for a time limit of the trainer (`sigstop`), a real disk, `tamper`: `harness check`
has them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from harness.chaos.coverage import Point
from harness.chaos.places import RECOVERY, REST, TRAINING, JobMap, Place, Start
from harness.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

KILLS, RECOVERIES, ASKS, ERRORS, DISKS = "kills", "recovery", "sigterm", "errors", "disk-full"
HOLDS, SIZES, DAMAGES, NUMBERS, POWER = "holds", "world-size", "damage", "overflow", "power-cut"
FAMILIES = (KILLS, RECOVERIES, ASKS, ERRORS, DISKS, HOLDS, SIZES, DAMAGES, NUMBERS, POWER)
DEFAULT_FAMILIES = tuple(name for name in FAMILIES if name != POWER)
# What can go wrong with an operation of a save, in the order in which it is met most often.
_FAILING = {
    "write": ("ENOSPC", "EIO", "EDQUOT"),
    "fsync": ("EIO", "ENOSPC"),
    "rename": ("EIO", "EACCES", "ENOSPC"),
    "open": ("ENOSPC", "EMFILE", "EACCES"),
}
_POSITIONS = ("50%", "byte 0", "byte 1", "10%", "90%", "last byte")
_MOST_OVERFLOWS = 3  # each of them needs an uninterrupted run of its own
_SURVIVORS = (
    "no names and no data",
    "all names and empty data",
    "all names and zeroed data",
    "no names and all data",
    "all names and torn data at 50%",
)
T = TypeVar("T")


def missing_extra() -> list[str]:
    """Why nothing can be drawn here, found without importing anything."""
    if importlib.util.find_spec("hypothesis") is not None:
        return []
    return [
        "hypothesis, which draws the schedules, is not installed; expected the extra chaos: pip install 'resume-harness[chaos]'"
    ]


@dataclass(frozen=True)
class Schedule:
    """What is done to a job.

    Attributes:
        faults: the sentences.
        world_sizes: ranks of each attempt.
        expect: as of `harness.scenario.Scenario`.
        max_attempts: launches.
        points: what it is likely to cover, in order.
    """

    faults: tuple[str, ...]
    world_sizes: tuple[int, ...]
    expect: Literal["resumes", "refuses", "resumes-or-refuses"]
    max_attempts: int
    points: tuple[Point, ...] = ()

    def text(self) -> str:
        """In one line."""
        ranks = " → ".join(map(str, self.world_sizes))
        return f"ranks {ranks}; " + ("; ".join(self.faults) or "no fault")


def draw_schedules(job: JobMap, families: Sequence[str], seed: int, count: int, storage: Path) -> list[Schedule]:
    """Draws schedules, all of them different.

    Args:
        job: what is known of the job.
        families: of `FAMILIES`.
        seed: of this draw.
        count: how many are asked for; fewer come where the job has no more to offer.
        storage: a folder that hypothesis may keep its own files in.

    Raises:
        UsageError: hypothesis is not installed.
    """
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(storage))  # or it makes a folder where the user stands
    if problems := missing_extra():
        raise UsageError(problems)
    import hypothesis
    from hypothesis import HealthCheck, Phase
    from hypothesis import strategies as st

    found: dict[Schedule, None] = {}

    @st.composite
    def schedules(draw: DrawFn) -> Schedule:
        return _Drawn(job, frozenset(families), _chooser(draw, st)).schedule()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, phases=(Phase.generate,), database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @hypothesis.given(schedules())
    def collect(schedule: Schedule) -> None:
        if schedule.faults:
            found.setdefault(schedule)

    collect()
    return list(found)


Choose = Callable[[Sequence[Any]], Any]


def _chooser(draw: DrawFn, st: Any) -> Choose:
    """Draws one of a sequence; the earlier ones are the simpler ones."""
    return lambda items: items[0] if len(items) == 1 else draw(st.sampled_from(items))


@dataclass
class _Drawn:
    """One schedule as it is being drawn."""

    job: JobMap
    families: frozenset[str]
    choose: Choose
    faults: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    start: Start = field(default_factory=lambda: Start(0, {}))
    exact: bool = True
    damaged: bool = False
    next_size: int = 0  # ranks of the attempt that comes next, once they are drawn

    def schedule(self) -> Schedule:
        """All attempts, one after the other."""
        self._numbers()
        count = self.choose((2, 2, 3, 1, 2, 3, 4))
        attempt = 0
        while attempt < count and self._attempt(attempt):
            attempt += 1
            if not self._between(attempt):
                break
        self.sizes.append(self._size(attempt))
        expect: Literal["resumes", "resumes-or-refuses"] = "resumes" if self.exact else "resumes-or-refuses"
        return Schedule(tuple(self.faults), tuple(self.sizes), expect, attempt + 2, tuple(self.points))

    # -- one attempt ----------------------------------------------------------------------------------------------------

    def _attempt(self, attempt: int) -> bool:
        """What ends an attempt, and what is done to it before; False where nothing can be done to it."""
        ends = self._ends(attempt)
        if not ends:
            return False
        size = self._size(attempt)
        self.sizes.append(size)
        self.next_size = 0
        self.choose(ends)(attempt, size)
        return True

    def _ends(self, attempt: int) -> list[Callable[[int, int], None]]:
        """The ways in which this attempt can end; those that are to be drawn more often stand there more often."""
        after, steps = self.job.after(self.start), self.job.steps_after(self.start)
        writes = [place for place in after if place.operation in _FAILING]
        ends: list[Callable[[int, int], None]] = []
        if KILLS in self.families:
            ends += [self._kill_at_step] * bool(steps) + [self._kill_at_operation] * (3 * bool(after))
        if RECOVERIES in self.families and attempt and self.job.recovery:
            ends += [self._kill_recovery] * 3
        if ASKS in self.families and steps:
            ends += [self._ask]
        if ERRORS in self.families and writes and self.job.gives_up:
            ends += [self._error] * 2
        if DISKS in self.families and self.job.save_bytes and self.job.gives_up and any(p.size_bytes for p in after):
            ends += [self._disk_full]
        if POWER in self.families and after:
            ends += [self._power_cut]
        return ends

    def _kill_at_step(self, attempt: int, size: int) -> None:
        step = self.choose(self.job.steps_after(self.start))
        self._say(f"sigkill all ranks at step {step} by rank 0", attempt, Point("step", "sigkill", TRAINING, size))
        self._died(0, self.job.steps_at.get(0, {}).get(step, 0), done=True)

    def _kill_at_operation(self, attempt: int, size: int) -> None:
        place = self.choose(self._operations(size))
        self._beside(attempt, size, place)
        moment = self.choose(("before", "during", "after") if place.size_bytes > 1 else ("before", "after"))
        at = f" at {self.choose(_POSITIONS)}" if moment == "during" else ""
        who, by = self.choose(((f"rank {place.rank}", ""), ("all ranks", f" by rank {place.rank}")))
        self._say(f"sigkill {who} {moment} {self._named(place, at)}{by}", attempt, self._point(place, "sigkill", size))
        self._died(place.rank, place.index, done=moment == "after")

    def _kill_recovery(self, attempt: int, size: int) -> None:
        place = self.choose([place for place in self.job.recovery if place.rank < size])
        moment = self.choose(("before", "after"))
        who, by = self.choose((("all ranks", f" by rank {place.rank}"), (f"rank {place.rank}", "")))
        nth = f" occurrence {place.nth}" if place.nth > 1 else ""
        sentence = f"sigkill {who} {moment} {place.operation} {place.pattern}{nth}{by}"
        self._say(sentence, attempt, Point(place.operation, "sigkill", RECOVERY, size))

    def _ask(self, attempt: int, size: int) -> None:
        step = self.choose(self.job.steps_after(self.start))
        self._say(f"sigterm all ranks at step {step} by rank 0", attempt, Point("step", "sigterm", TRAINING, size))
        if self.job.saves_when_asked:
            self.start = self.job.restart_asked(step)
        else:
            self._died(0, self.job.steps_at.get(0, {}).get(step, 0), done=True)

    def _error(self, attempt: int, size: int) -> None:
        place = self.choose([place for place in self._operations(size) if place.operation in _FAILING])
        name = self.choose(_FAILING[place.operation])
        times = self.choose(("", "", " always"))
        self._say(f"{name} rank {place.rank} on {self._named(place)}{times}", attempt, self._point(place, name, size))
        self._died(place.rank, place.index, done=False)

    def _disk_full(self, attempt: int, size: int) -> None:
        held = min(self.job.standing, len([start for start in self.job.starts[1:] if start.step <= self.start.step]))
        room = self.job.save_bytes * self.choose((50, 10, 90, 99, 1)) // 100
        self._say(f"quota {held * self.job.save_bytes + room + 1} bytes", attempt, Point("disk", "quota", "save", size))

    def _power_cut(self, attempt: int, size: int) -> None:
        place = self.choose(self._operations(size))
        moment, survivors = self.choose(("before", "after")), self.choose(_SURVIVORS)
        sentence = f"power-cut keeping {survivors} {moment} {self._named(place)} by rank {place.rank}"
        self._say(sentence, attempt, self._point(place, "power-cut", size))
        self._died(place.rank, place.index, done=moment == "after")

    def _beside(self, attempt: int, size: int, until: Place) -> None:
        """What the attempt gets over before it ends at a place."""
        before = [p for p in self._operations(size) if p.rank == until.rank and p.index < until.index]
        writes = [place for place in before if place.size_bytes > 1]
        # What comes later anyhow is not there to be held when the attempt ends.
        others = [p for p in self._operations(size) if p.rank != until.rank and p.step == until.step and p.order < until.order]
        fails = ERRORS in self.families and not self.job.gives_up and any(p.operation in _FAILING for p in before)
        can = (
            [""] * 4
            + ["error"] * (3 * fails)
            + ["short"] * (ERRORS in self.families and bool(writes))
            + ["hold"] * (HOLDS in self.families and bool(others))
        )
        what = self.choose(can)
        if what == "error":
            place = self.choose([place for place in before if place.operation in _FAILING])
            name = self.choose(_FAILING[place.operation])
            self._say(f"{name} rank {place.rank} on {self._named(place)}", attempt, self._point(place, name, size))
            self._beside(attempt, size, place)  # perhaps another one before it
        elif what == "short":
            place = self.choose(writes)
            sentence = f"short-write rank {place.rank} on {self._named(place, ' at 30%')}"
            self._say(sentence, attempt, self._point(place, "short-write", size))
        elif what == "hold":
            place = self.choose(others)
            sentence = f"hold rank {place.rank} before {self._named(place)} until rank {until.rank} {self._named(until)}"
            self._say(sentence, attempt, self._point(place, "hold", size))

    # -- between two attempts, and beside all of them ---------------------------------------------------------------------

    def _between(self, attempt: int) -> bool:
        """Damage before a restart; False where the job may not go on after it."""
        standing = min(self.job.standing, self._saved())
        if DAMAGES not in self.families or not standing or self.choose((False, False, True)) is False:
            return True
        every = standing == 1 or self.choose((False, False, False, True))
        sentence, effect = self._damage("every" if every and standing > 1 else "newest", standing, attempt)
        self._say(sentence, attempt, Point("files", effect, REST, self._size(attempt)), default=1)
        self.exact = False
        if every or self.damaged or not self.job.falls_back:
            return False
        self.damaged = True
        saved = [start for start in self.job.starts if start.step < self.start.step]
        self.start = saved[-1] if saved else Start(0, {})
        return True

    def _damage(self, which: str, standing: int, attempt: int) -> tuple[str, str]:
        file = f"/{self.choose(self.job.files)}" if self.job.files else ""
        effects = ["truncate", "flip", "zero", "delete"] + ["replace"] * (standing > 1 and which == "newest")
        effect = self.choose(effects)
        how = ""
        if effect == "truncate":
            how = f" to {self.choose(_POSITIONS)}"
        elif effect == "flip":
            # Never the same bit twice, which would undo it.
            how = f" at {self.choose(('60%', '5%', '95%', '30%'))} bit {attempt % 8}"
        elif effect == "zero":
            how = f" at {self.choose(('50%', '0%', '90%'))}"
        elif effect == "replace":
            how = " from older"
        return f"{effect} {which}{file}{how}", effect

    def _numbers(self) -> None:
        if NUMBERS not in self.families or not self.job.scaled or self.choose((False, False, False, True)) is False:
            return
        batch = self.choose(tuple(range(2, self.job.batches))[:_MOST_OVERFLOWS] or (1,))
        self.faults.append(f"overflow all ranks at batch {batch}")
        self.points.append(Point("batch", "overflow", TRAINING, self.job.ranks))

    # -- words ------------------------------------------------------------------------------------------------------------

    def _size(self, attempt: int) -> int:
        if self.next_size and len(self.sizes) == attempt:
            return self.next_size
        if not attempt or SIZES not in self.families or not self.job.sizes:
            return self.job.ranks
        size = int(self.choose((self.sizes[-1], *self.job.sizes, self.job.ranks)))
        self.exact = self.exact and (self.job.reshards or size == self.sizes[-1])
        self.next_size = size
        return size

    def _operations(self, size: int) -> list[Place]:
        """What an attempt on so many ranks will do, as far as can be told.

        How often a kind of operation comes is known of one number of ranks only, since shards are of another size on others; that
        it comes at all is known of each.
        """
        places = [place for place in self.job.after(self.start) if place.rank < size]
        if size == self.job.ranks:
            return places
        first: dict[tuple[int, str, str], Place] = {}
        for place in places:
            first.setdefault((place.rank, place.operation, place.pattern), place)
        return list(first.values())

    def _saved(self) -> int:
        return sum(0 < start.step <= self.start.step for start in self.job.starts)

    def _died(self, rank: int, index: int, done: bool) -> None:
        later = self.job.restart_after(rank, index, done)
        self.start = later if later.step > self.start.step else self.start

    def _named(self, place: Place, at: str = "") -> str:
        count = self.job.occurrence(place, self.start)
        return f"{place.operation} {place.pattern}{at}" + (f" occurrence {count}" if count > 1 else "")

    def _point(self, place: Place, effect: str, size: int) -> Point:
        return Point(place.operation, effect, place.phase, size)

    def _say(self, sentence: str, attempt: int, point: Point, default: int = 0) -> None:
        self.faults.append(sentence if attempt == default else f"{sentence} attempt {attempt}")
        self.points.append(point)
