"""What a night leaves in the corpus, by its bookkeeping alone: no case is run."""

from __future__ import annotations

import os
import signal

import pytest

from harness.case import Workbench
from harness.chaos.corpus import FAILING, FIXED, FLAKY, Corpus
from harness.chaos.drawing import Schedule
from harness.chaos.found import Request
from harness.chaos.journal import SCHEMA, find_unfinished
from harness.chaos.night import _Night
from harness.chaos.running import Ran
from harness.errors import HarnessError
from harness.launch.warm import WarmLaunch
from harness.report.chaos import chaos_json
from harness.scenario import job

JOB = job("sharded", ranks=2)
GROUP = ("diverged", "rng")


def ran(outcome, group=GROUP):
    kind, component = group if outcome == "FAIL" else (None, "none")
    return Ran(outcome, kind, component, "", {}, (), "", "resumes")


@pytest.fixture
def corpus(tmp_path):
    return Corpus(tmp_path / "corpus")


@pytest.fixture
def begin(tmp_path):
    """A night with this corpus, which has taken up its cases."""
    nights = []

    def make(unfinished=None):
        folder = unfinished.folder if unfinished else tmp_path / f"night-{len(nights)}"
        folder.mkdir(exist_ok=True)
        request = Request(JOB, 1, 60.0, 1, corpus=tmp_path / "corpus", shrink=False, canary=False)
        bench = Workbench(folder / "cases", tmp_path, WarmLaunch(tmp_path, 1))
        nights.append(night := _Night(request, bench, folder, lambda _: None, lambda *_: None, unfinished))
        if unfinished:
            return night
        night.journal.write("night", schema=SCHEMA, began="2026-01-01T00:00:00+00:00", request={})
        night.scenario = JOB
        night._queue_corpus()
        return night

    yield make
    for night in nights:
        night.close()


def drawn(night, step):
    return night._draw("drawn", Schedule((f"sigkill rank 1 at step {step}",), (2,), "resumes", 3))


def kept(corpus, step, event):
    name = corpus.keep(job("sharded", ranks=2, faults=f"sigkill rank 1 at step {step}"))
    corpus.say(event, name, GROUP, "earlier")
    return name


def states(corpus):
    return {one.scenario.faults[0][-1]: (one.fixed, one.flaky) for one in corpus.cases()[0]}


def test_what_failed_when_the_budget_had_ended_is_tried_first_in_the_next_night(corpus, begin):
    night = begin()
    for step in (3, 4):
        drawn(night, step).ran = ran("FAIL")
    drawn(night, 5).ran = ran("PASS")
    night._check_what_came()
    night._keep_unrepeated()
    assert states(corpus) == {"3": (False, False)}  # of one kind and component the first
    assert night.found.notes == ["cases 1, 2 failed without being repeated: the budget had ended"]
    assert [case.origin.split()[0] for case in begin().found.cases] == ["corpus"]


def test_a_result_says_when_its_night_began(begin):
    night = begin()
    night.found.began = "2026-01-01T00:00:00+00:00"
    assert chaos_json(["harness", "chaos"], night.found)["began"] == night._history()["began"] == night.found.began


def test_a_failure_is_new_where_the_one_of_its_kind_passes_tonight(corpus, begin):
    kept(corpus, 3, FAILING)
    night = begin()
    night.found.cases[0].ran = ran("PASS")
    night._settle(night.found.cases[0])
    new = drawn(night, 4)
    new.ran = new.again = ran("FAIL")
    night._settle(new)
    assert states(corpus) == {"3": (True, False), "4": (False, False)}


def test_a_failure_is_not_new_where_the_one_of_its_kind_still_fails(corpus, begin):
    kept(corpus, 3, FAILING)
    night = begin()
    new = drawn(night, 4)
    new.ran = new.again = ran("FAIL")
    night._settle(new)
    assert states(corpus) == {"3": (False, False)}


def test_a_flaky_one_that_passes_is_not_fixed(corpus, begin):
    kept(corpus, 3, FLAKY)
    kept(corpus, 4, FIXED)
    night = begin()
    for case in night.found.cases:
        case.ran = ran("PASS")
        night._settle(case)
    assert states(corpus) == {"3": (False, True), "4": (True, False)}
    assert len(night.found.fixed) == 1


def killed(night, used_s):
    """The night as it lies on disk when it was killed after so many seconds."""
    night.journal._began -= used_s
    night.journal.write("rounds", count=1)
    night.close()
    return find_unfinished(night.folder)


def test_what_a_killed_night_had_found_is_told_when_its_budget_is_used_up(corpus, begin):
    night = begin()
    for step, outcome in ((3, "PASS"), (4, "FAIL"), (5, None)):
        case = drawn(night, step)
        if outcome:
            case.ran = case.again = ran(outcome)
            night._settle(case)
    found = begin(killed(night, 120.0)).run()  # nothing can be run any more
    assert (found.exit_code, found.count("PASS"), found.count("FAIL"), found.cut, found.blocked) == (1, 1, 1, 1, "")
    assert ["used up when the night went on" in note for note in found.notes] == [True]
    assert states(corpus) == {"4": (False, False)}


def test_what_had_turned_before_a_night_was_killed_is_told_when_it_goes_on(corpus, begin):
    names = [kept(corpus, 3, FIXED), kept(corpus, 4, FAILING)]
    night = begin()
    for case in night.found.cases:
        case.ran = case.again = ran("FAIL" if night.kept[case.number].fixed else "PASS")
        night._settle(case)
    assert (night.found.regressed, night.found.fixed) == (names[:1], names[1:])
    going_on = begin(killed(night, 1.0))
    going_on.scenario = JOB
    going_on._take_up()
    assert (going_on.found.regressed, going_on.found.fixed) == (names[:1], names[1:])
    assert states(corpus) == {"3": (False, False), "4": (True, False)}


def test_what_regressed_when_the_budget_had_ended_is_told_though_it_was_not_repeated(corpus, begin):
    name = kept(corpus, 3, FIXED)
    night = begin()
    night.found.cases[0].ran = ran("FAIL")
    night._keep_unrepeated()
    assert night.found.regressed == [name]
    assert states(corpus) == {"3": (False, False)}


def test_a_night_that_had_found_nothing_when_its_budget_was_used_up_says_so(begin):
    night = begin()
    drawn(night, 3)
    found = begin(killed(night, 120.0)).run()
    assert found.exit_code == 3
    assert "before the canary and the looks" in found.blocked


def test_a_case_that_the_corpus_has_no_more_takes_nothing_else_with_it(corpus, begin):
    name = kept(corpus, 3, FAILING)
    night = begin()  # with the case of the corpus as its first
    case = drawn(night, 4)
    case.ran = case.again = ran("FAIL")
    night._settle(case)
    (corpus.folder / "cases" / f"{name}.toml").unlink()
    going_on = begin(killed(night, 1.0))
    going_on.scenario = JOB
    going_on._take_up()
    assert [(one.number, one.failed) for one in going_on.found.ran] == [(2, True)]
    assert not going_on.queue
    assert all("the corpus has no such case any more" in note for note in going_on.found.notes)


def test_a_process_of_the_harness_that_dies_leaves_a_night_that_goes_on(begin, monkeypatch):
    night = begin()
    monkeypatch.setattr("harness.chaos.night._look", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(HarnessError, match=r"ended by signal 9 .* Nothing that was found is lost; go on with it: .*--continue"):
        night.run()
    night.close()
    assert find_unfinished(night.folder).folder == night.folder
