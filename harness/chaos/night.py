"""One night: the canary, the failures of earlier nights, then random schedules until the budget ends.

Responsible for: the order of things, the budget, what is written down before and after each case, repeating what fails, and
going on where a killed night had stopped. Not responsible for: drawing, running, judging, shrinking, printing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import __version__, warming
from harness.case import Workbench
from harness.chaos import canary, drawing, journal, looks
from harness.chaos.corpus import FAILING, FIXED, FLAKY, Corpus, Kept, for_job
from harness.chaos.coverage import Coverage, Point, choose
from harness.chaos.drawing import Schedule
from harness.chaos.found import Case, Found, Request
from harness.chaos.journal import Journal, Unfinished
from harness.chaos.places import JobMap
from harness.chaos.running import Ran, run_one
from harness.errors import is_full
from harness.inject.disk import room_bytes
from harness.scenario import Command, Scenario
from harness.shrink.search import Failure, as_entry, recalled, shrink
from harness.signals import remembered
from harness.workers import DiedError, Pool

DRAWN, CORPUS = "drawn", "corpus"
# Schedules are drawn so many at a time, and of so many times more those are chosen that add most.
_ROUND, _CHOICE, _MOST_DRAWN = 16, 4, 512
_EMPTY_ROUNDS = 3
_CORPUS_SHARE, _SHRINK_SHARE = 0.5, 0.25
_LEAST_DEADLINE_S, _DEADLINE_FACTOR = 60.0, 5.0
_LEAST_ROOM_BYTES, _ROOM_PER_CASE = 32 << 20, 8
_POLL_S = 0.5
# Of so many failures of one kind and component the whole run directory is kept, of the rest the replay file and the verdict.
_KEPT_OF_A_GROUP = 10


Say = Callable[[str], None]
Tick = Callable[[int, int, int], None]


def run_night(
    request: Request, bench: Workbench, folder: Path, say: Say, tick: Tick, unfinished: Unfinished | None = None
) -> Found:
    """Runs a night to the end of its budget.

    Args:
        request: what is asked for.
        bench: where cases run; they go into `folder`.
        folder: of this night; the journal, the run directories and nothing else.
        say: is told what is done, and all of what is drawn before it happens.
        tick: is told how many cases are done, how many fail, of about how many.
        unfinished: a night that was killed, with which this one goes on.

    Raises:
        UsageError, LaunchError: the job cannot be run at all.
        CapabilityError: this machine cannot do it, or its disk is full.
    """
    night = _Night(request, replace(bench, runs=folder / "cases", forked=True), folder, say, tick, unfinished)
    try:
        with remembered() as night.interrupted:
            return night.run()
    finally:
        night.close()


class _OutOfTimeError(Exception):
    """The budget is used up."""


class _Night:
    def __init__(
        self, request: Request, bench: Workbench, folder: Path, say: Say, tick: Tick, unfinished: Unfinished | None
    ) -> None:
        self.request, self.bench, self.folder, self.say, self.tick = request, bench, folder, say, tick
        self.found = Found(request, folder)
        self.corpus = Corpus(request.corpus) if request.corpus else None
        self.journal = Journal(folder, unfinished.used_s if unfinished else 0.0)
        self.earlier = unfinished.entries if unfinished else ()
        self.pool = Pool(say)
        self.interrupted: Callable[[], None] = lambda: None  # raises what a Ctrl-C had raised where it was lost
        self.queue: deque[tuple[Case, bool]] = deque()  # cases to be run; True: a failure to be repeated
        self.kept: dict[int, Kept] = {}
        self.new_groups: set[tuple[str, str]] = set()  # of failures that have gone into the corpus tonight
        self.seen: set[tuple[str, ...]] = set()
        self.ahead = Coverage()  # what was drawn, whether it has fired or not: by this the next are chosen
        self.rounds = 0
        self.job: JobMap | None = None
        self.slowest_s = 0.0
        self.took: list[float] = []
        self.drew_s = 0.0  # how long the last round of drawing has taken
        self.bench.runs.mkdir(exist_ok=True)

    def close(self) -> None:
        """Ends what still runs."""
        self.pool.end()
        self.found.used_s = self.journal.used_s
        self.journal.close()

    def run(self) -> Found:
        """The whole story."""
        request, found = self.request, self.found
        found.began = str(self.earlier[0].get("began", "")) if self.earlier else journal.now()
        if not self.earlier:
            facts = {"schema": journal.SCHEMA, "harness": __version__, "began": found.began}
            self.journal.write("night", **facts, request=request.to_json())
        self.say(f"seed {request.seed}" + (f", shard {request.shard[0]} of {request.shard[1]}" if request.shard[1] > 1 else ""))
        try:
            if self._prepare():
                self._take_up()
                self._queue_corpus()
                self._search()
        except _OutOfTimeError:
            self._out_of_time()
        except DiedError as error:
            raise DiedError(f"{error}. {journal.goes_on(self.folder)}") from None
        except OSError as error:
            if is_full(error):
                raise journal.disk_full(self.folder) from error
            raise
        cut = self.pool.end()
        found.cut += sum(isinstance(key, tuple) for key in cut)  # the looks are no cases
        for key in cut:
            if isinstance(key, tuple):
                self._drop_rest(self.found.cases[key[0] - 1], again=key[1])
        found.used_s = self.journal.used_s
        self._check_what_came()
        self._keep_unrepeated()
        if self.corpus and found.ran:
            self.corpus.end(found.coverage, self._history())
        self.journal.write("ended", exit=found.exit_code)
        return found

    def _out_of_time(self) -> None:
        """The budget ended before anything new was found; what a killed night had found is told all the same."""
        looked, budget = self.job is not None, f"the budget of {self.request.budget_s:g} s"
        if self.earlier and not looked:
            self.scenario = self.request.scenario
            self._take_up()
        if self.found.ran:
            self.found.cut += len(self.queue)
            self.found.notes.append(f"{budget} was used up when the night went on; what it had found before is told here")
        elif not self.found.blocked:
            what = "the first case" if looked else "the canary and the looks at the job"
            self.found.blocked = f"{budget} was used up before {what} had come to an end; expected a larger --budget"

    # -- before the first case ------------------------------------------------------------------------------------------

    def _prepare(self) -> bool:
        """The canary, and what must be known of the job; False where nothing can be drawn."""
        found = self.found
        if self.request.canary:
            self.say(f"canary: the reference trainer with --defect {canary.DEFECT} must fail")
            self.pool.start("canary", run_one, canary.canary(), self.bench)
        self.pool.start("look", _look, self.request, self.bench, says=True)
        answers: dict[str, Any] = {}
        while len(self.pool):
            self.interrupted()
            answers.update(self.pool.wait(self._left_s(needed_s=0.0)))
        if "canary" in answers:
            found.broken = canary.judged(answers["canary"])
            if found.broken:
                return False
            shutil.rmtree(answers["canary"].path, ignore_errors=True)
            self.say("canary: failed, as it must")
        started, looked = answers["look"]
        found.started, self.bench = started.text, replace(started.bench, runs=self.bench.runs)
        self.job = looked.job
        found.steps = looked.job.steps if looked.job else 0
        deadline_s = max(_LEAST_DEADLINE_S, _DEADLINE_FACTOR * looked.took_s)
        self.scenario = started.scenario.model_copy(update={"deadline_s": deadline_s})
        if looked.job is None:
            root = looked.verdict.root
            found.blocked = looked.why_not + (f": {root.message}" if root else "")
        return looked.job is not None

    def _take_up(self) -> None:
        """What a killed night had done: its results are taken as they are, and what it had not ended is run again."""
        if self.corpus:
            self.found.before, problems = self.corpus.coverage()
            self.found.notes += problems
            self.ahead.merge(self.found.before)
        results = {entry["number"]: entry for entry in self.earlier if entry["event"] == "finished"}
        for entry in self.earlier:
            if entry["event"] == "rounds":
                self.rounds = max(self.rounds, int(entry["count"]))
            if entry["event"] != "drawn":
                continue
            case = self._drawn_before(entry)
            if case.number in results:
                self._recall(case, results[case.number])
            elif case.origin != DRAWN and case.number not in self.kept:
                self.found.notes.append(f"case {case.number} ({case.origin}) was not run: the corpus has no such case any more")
            else:
                for again in (False, True):
                    self._drop_rest(case, again)
                self.queue.append((case, False))
        shutil.rmtree(self.folder / "shrinking", ignore_errors=True)
        self._take_up_failures()
        if self.earlier:
            self.say(f"going on: {len(self.found.ran)} cases are done, {len(self.queue)} had begun")

    def _take_up_failures(self) -> None:
        for entry in self.earlier:
            if entry["event"] == "shrunk" and (smaller := recalled(entry)) is not None:
                self.found.smaller[smaller.group] = smaller
        for case in self.found.cases:  # the night was killed before one was made smaller
            if case.failed and not case.flaky and case.ran is not None and Path(case.ran.path, "golden").is_dir():
                self._new_failure(case)

    def _drawn_before(self, entry: Mapping[str, Any]) -> Case:
        origin, schedule, scenario = str(entry["origin"]), _schedule_of(entry), None
        if origin != DRAWN:
            kept = {one.id: one for one in (self.corpus.cases()[0] if self.corpus else [])}.get(origin.removeprefix(f"{CORPUS} "))
            scenario = for_job(kept.scenario, self.scenario) if kept else None
            if kept is not None and scenario is not None:
                self.kept[int(entry["number"])] = kept
        self.ahead.add(schedule.points)
        return self._case(origin, schedule, int(entry["number"]), scenario)

    def _recall(self, case: Case, entry: Mapping[str, Any]) -> None:
        case.ran = _ran_of(entry["ran"])
        case.again = _ran_of(entry["again"]) if entry.get("again") else None
        self.found.coverage.add(case.ran.points)
        self._count(case, str(entry.get("turned", "")))

    def _drop_rest(self, case: Case, again: bool) -> None:
        """Removes what an interrupted case has left, for which its next try is not to be taken."""
        name = f"{case.scenario.name}-again" if again else case.scenario.name
        for path in self.bench.runs.glob(f"{case.scenario.name}*"):
            if path.name.partition(".")[0] == name:
                shutil.rmtree(path, ignore_errors=True)

    def _queue_corpus(self) -> None:
        if self.corpus is None or any(entry["event"] == "drawn" for entry in self.earlier):
            return
        kept, problems = self.corpus.cases()
        self.found.notes += problems
        others = 0
        for one in kept:
            scenario = for_job(one.scenario, self.scenario)
            if scenario is None:
                others += 1
            elif _shard_of(scenario.faults, self.request.shard[1]) == self.request.shard[0]:
                schedule = Schedule(scenario.faults, scenario.world_sizes, scenario.expect, scenario.max_attempts)
                case = self._draw(f"{CORPUS} {one.id}", schedule, scenario)
                self.kept[case.number] = one
        if others:
            self.found.notes.append(f"{others} cases of the corpus are of other jobs, and were left alone")

    # -- the search -------------------------------------------------------------------------------------------------------

    def _search(self) -> None:
        """Keeps all places busy until the budget ends, or nothing new can be drawn."""
        empty = 0
        while True:
            self.interrupted()
            while len(self.pool) < self.request.jobs and self._has_time():
                if not self.queue and empty < _EMPTY_ROUNDS and not self._enough() and self._has_time(self.drew_s):
                    empty = 0 if self._draw_round() else empty + 1
                    continue
                if not self.queue:
                    break
                self._begin(*self.queue.popleft())
            if not len(self.pool):
                break
            for key, ran in self.pool.wait(min(_POLL_S, max(0.0, self.request.budget_s - self.journal.used_s))):
                self._end(key, ran)
            if self.journal.used_s >= self.request.budget_s or (self.request.exit_first and self._settled_failure()):
                break
        if not self.found.cases:
            asked = ", ".join(self.request.families)
            shard = f", shard {self.request.shard[0]} of {self.request.shard[1]}" if self.request.shard[1] > 1 else ""
            self.found.blocked = (
                f"seed {self.request.seed} drew nothing{shard}: no fault of {asked} can happen to this job; expected other "
                "--faults, or a job that saves more often"
            )
        elif empty >= _EMPTY_ROUNDS:
            self.found.notes.append("nothing new could be drawn: the job has no more schedules to offer")
        if self.found.cases and not self.found.ran and not self.found.blocked:
            raise _OutOfTimeError

    def _settled_failure(self) -> bool:
        return any(case.failed and case.again is not None for case in self.found.cases)

    def _enough(self) -> bool:
        return self.request.most is not None and len(self.found.cases) >= self.request.most

    def _has_time(self, before_s: float = 0.0) -> bool:
        """Whether a case that takes as long as others have, and what comes before it, would still end within the budget."""
        usual = sum(self.took[-20:]) / len(self.took[-20:]) if self.took else 0.0
        return self.journal.used_s + before_s + 1.5 * usual < self.request.budget_s

    def _draw_round(self) -> int:
        """Draws the next schedules; returns how many are new."""
        assert self.job is not None
        number, (index, count), began_s = self.rounds, self.request.shard, self.journal.used_s
        self.rounds += 1
        self.journal.write("rounds", count=self.rounds)
        seed = int.from_bytes(hashlib.sha256(f"{self.request.seed}:{number}".encode()).digest()[:8], "big")
        many = min(_MOST_DRAWN, _ROUND * _CHOICE * count)
        drawn = drawing.draw_schedules(self.job, self.request.families, seed, many, self.folder / "hypothesis")
        mine = [s for s in drawn if s.faults not in self.seen and _shard_of(s.faults, count) == index]
        chosen = choose(mine, _ROUND if self.request.most is None else min(_ROUND, self.request.most), self.ahead)
        for schedule in chosen:
            self._draw(DRAWN, schedule)
        self.drew_s = self.journal.used_s - began_s
        return len(chosen)

    def _draw(self, origin: str, schedule: Schedule, scenario: Scenario | None = None) -> Case:
        case = self._case(origin, schedule, len(self.found.cases) + 1, scenario)
        self.ahead.add(schedule.points)
        self.journal.write("drawn", number=case.number, origin=origin, **_facts(schedule))
        self.queue.append((case, False))
        return case

    def _case(self, origin: str, schedule: Schedule, number: int, scenario: Scenario | None = None) -> Case:
        name = f"case-{number:05d}"
        facts = {**(scenario or self.scenario).model_dump(), **_facts(schedule), "name": name}
        facts.pop("points", None)
        case = Case(number, origin, schedule, Scenario.build(facts))
        self.seen.add(schedule.faults)
        self.found.cases.append(case)
        return case

    def _begin(self, case: Case, again: bool) -> None:
        self._check_room()
        scenario = case.scenario
        if again:
            assert case.ran is not None
            scenario = scenario.model_copy(update={"name": f"{scenario.name}-again", "expect": case.ran.expect})
        what = "once more" if again else case.origin
        self.say(f"case {case.number} ({what}, seed {self.request.seed}): {case.schedule.text()}")
        self.pool.start((case.number, again), run_one, scenario, self.bench, again)

    def _end(self, key: tuple[int, bool], ran: Ran) -> None:
        """Takes an answer; what fails is repeated, and what fails twice made smaller."""
        number, again = key
        case = self.found.cases[number - 1]
        if ran.outcome != "PASS" and not ran.missed:
            self._check_room()  # a job whose disk is full is not to blame
        self.took.append(ran.took_s)
        if again:
            case.again = ran
        else:
            case.ran = ran
            self.found.coverage.add(ran.points)
        if case.failed and not again:
            self.queue.appendleft((case, True))
        else:
            self._settle(case)
        done = len(self.found.ran)
        self.tick(done, self.found.count("FAIL"), max(done, round(done * self.request.budget_s / self.journal.used_s)))

    def _settle(self, case: Case) -> None:
        """Nothing more is to be run of a case."""
        assert case.ran is not None
        again, turned = _as_json(case.again) if case.again else None, self._turned(case)
        self.journal.write("finished", number=case.number, ran=_as_json(case.ran), again=again, turned=turned)
        self._count(case, turned)
        if case.ran.outcome != "PASS" and not case.ran.missed:
            flaky = " (flaky: it did not when it was repeated)" if case.flaky else ""
            self.say(f"case {case.number}: {case.ran.outcome} {case.ran.kind} ({case.ran.component}){flaky}: {case.ran.message}")
        if case.again is not None and not case.flaky:
            shutil.rmtree(case.again.path, ignore_errors=True)  # it says the same as the first
        if case.failed and not case.flaky and len(self.found.groups()[case.ran.group]) > _KEPT_OF_A_GROUP:
            _keep_little(Path(case.ran.path))
        if case.number in self.kept:
            self._say_of_kept(case, self.kept[case.number])
        elif case.flaky and self.corpus:
            self.corpus.say(FLAKY, self.corpus.keep(case.scenario), case.ran.group, self.folder.name)
        elif case.failed:
            self._new_failure(case)

    def _turned(self, case: Case) -> str:
        """`regressed` or `fixed` of a case of the corpus that is now what it was not; "" of others."""
        kept = self.kept.get(case.number)
        if kept is None or case.ran is None:
            return ""
        if case.failed:
            return "regressed" if kept.fixed else ""
        return "fixed" if case.ran.outcome == "PASS" and not kept.flaky else ""  # of a flaky one a pass says nothing

    def _count(self, case: Case, turned: str) -> None:
        if turned and case.number in self.kept:
            (self.found.regressed if turned == "regressed" else self.found.fixed).append(self.kept[case.number].id)

    def _say_of_kept(self, case: Case, kept: Kept) -> None:
        assert case.ran is not None
        assert self.corpus is not None
        if case.failed:
            self.corpus.say(FLAKY if case.flaky else FAILING, kept.id, case.ran.group, self.folder.name)
        elif self._turned(case) == "fixed":
            self.corpus.say(FIXED, kept.id, kept.group, self.folder.name)

    def _new_failure(self, case: Case) -> None:
        """The first failure of its kind is made smaller, and goes into the corpus."""
        assert case.ran is not None
        group = case.ran.group
        if self._is_kept(group):
            return
        scenario = case.scenario.model_copy(update={"expect": case.ran.expect})
        left = self.request.budget_s - self.journal.used_s
        if self.request.shrink and left > 0:
            budget_s = left * (1.0 if self.request.exit_first else _SHRINK_SHARE)
            bench = replace(self.bench, runs=self.folder / "shrinking")
            failure = Failure(scenario, group, Path(case.ran.path))
            smaller = shrink(failure, bench, self.folder / "shrunk" / scenario.name, budget_s, self.request.jobs, self.say)
            self.found.smaller[group] = smaller
            self.journal.write("shrunk", **as_entry(smaller))
            scenario = smaller.scenario
        self._keep(scenario, group)

    def _is_kept(self, group: tuple[str, str]) -> bool:
        """Whether the corpus has a failure of this group already, one that does not pass tonight."""
        still = (one for one in self.kept.values() if not one.fixed and one.id not in self.found.fixed)
        return group in self.found.smaller or group in self.new_groups or any(one.group == group for one in still)

    def _keep(self, scenario: Scenario, group: tuple[str, str]) -> None:
        self.new_groups.add(group)
        if self.corpus:
            self.corpus.say(FAILING, self.corpus.keep(scenario), group, self.folder.name)

    def _keep_unrepeated(self) -> None:
        """What failed when the budget had ended is not lost: the next night begins with it."""
        for case in self.found.cases:
            if not case.failed or case.again is not None or self.corpus is None:
                continue
            assert case.ran is not None
            if case.number in self.kept:
                self._count(case, self._turned(case))
                self._say_of_kept(case, self.kept[case.number])
            elif not self._is_kept(case.ran.group):
                self._keep(case.scenario.model_copy(update={"expect": case.ran.expect}), case.ran.group)

    # -- limits -------------------------------------------------------------------------------------------------------------

    def _left_s(self, needed_s: float) -> float:
        left = self.request.budget_s - self.journal.used_s
        if left <= needed_s:
            raise _OutOfTimeError
        return left

    def _check_room(self) -> None:
        """Raises: CapabilityError where the disk has no room for what is about to run."""
        per_case = _ROOM_PER_CASE * (self.job.save_bytes * (self.job.standing + 1) if self.job else 0)
        if room_bytes(str(self.folder)) < _LEAST_ROOM_BYTES + self.request.jobs * per_case:
            raise journal.disk_full(self.folder)

    def _check_what_came(self) -> None:
        found = self.found
        if not found.ran:
            return
        if 2 * found.missed > len(found.ran):
            found.notes.append(
                f"{found.missed} of {len(found.ran)} schedules did not fire as drawn: the job does not do again what it did"
            )
        unrepeated = [case.number for case in found.cases if case.failed and case.again is None]
        if unrepeated:
            which = f"case {unrepeated[0]}" if len(unrepeated) == 1 else f"cases {', '.join(map(str, unrepeated))}"
            found.notes.append(f"{which} failed without being repeated: the budget had ended")

    def _history(self) -> dict[str, Any]:
        found = self.found
        return {
            "night": self.folder.name,
            "began": found.began,
            "harness": __version__,
            "seed": self.request.seed,
            "shard": list(self.request.shard),
            "budget_s": self.request.budget_s,
            "used_s": round(found.used_s, 1),
            "cases": len(found.ran),
            "pass": found.count("PASS"),
            "fail": found.count("FAIL"),
            "flaky": sum(case.flaky for case in found.cases),
            "inconclusive": found.count("INCONCLUSIVE"),
            "missed": found.missed,
            "cases_per_min": round(60 * len(found.ran) / found.used_s, 2) if found.used_s else None,
            "points": len(found.coverage.points),
            "pairs": len(found.coverage.pairs),
            "groups": [[*group, len(cases)] for group, cases in found.groups().items()],
            "regressed": found.regressed,
            "fixed": found.fixed,
        }


@dataclass(frozen=True)
class _Started:
    scenario: Scenario
    bench: Workbench
    text: str


def _look(request: Request, bench: Workbench, say: Say) -> tuple[_Started, looks.Looked]:
    """How the job is started from now on, and what is known of it."""
    scenario, text = request.scenario, ""
    if isinstance(scenario.workload, Command):
        say("running the job twice, undisturbed")
        chosen = warming.choose_launch(scenario, bench, request.launch)
        scenario, bench, text = chosen.scenario, chosen.bench, chosen.text
        say(text)
    return _Started(scenario, bench, text), looks.look(scenario, bench, request.families, say, request.world_sizes)


def _keep_little(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _shard_of(faults: Iterable[str], count: int) -> int:
    """Which of so many shards a schedule belongs to, from 1; the same on every machine."""
    return 1 + int.from_bytes(hashlib.sha256("\n".join(faults).encode()).digest()[:8], "big") % count


def _facts(schedule: Schedule) -> dict[str, Any]:
    names = ("faults", "world_sizes", "expect", "max_attempts")
    return {name: getattr(schedule, name) for name in names} | {"points": schedule.points}


def _schedule_of(entry: Mapping[str, Any]) -> Schedule:
    points = tuple(Point(*point) for point in entry.get("points", ()))
    return Schedule(tuple(entry["faults"]), tuple(entry["world_sizes"]), entry["expect"], entry["max_attempts"], points)


def _as_json(ran: Ran) -> dict[str, Any]:
    return {**vars(ran), "points": [list(point) for point in ran.points]}


def _ran_of(data: Mapping[str, Any]) -> Ran:
    return Ran(**{**data, "points": tuple(Point(*point) for point in data["points"])})
