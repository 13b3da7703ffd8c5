"""What a night leaves in the corpus, by its bookkeeping alone: no case is run."""

from __future__ import annotations

import pytest

from harness.case import Workbench
from harness.chaos.corpus import FAILING, FIXED, FLAKY, Corpus
from harness.chaos.drawing import Schedule
from harness.chaos.found import Request
from harness.chaos.night import _Night
from harness.chaos.running import Ran
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

    def make():
        folder = tmp_path / f"night-{len(nights)}"
        folder.mkdir()
        request = Request(JOB, 1, 60.0, 1, corpus=tmp_path / "corpus", shrink=False)
        bench = Workbench(folder / "cases", tmp_path, WarmLaunch(tmp_path, 1))
        nights.append(night := _Night(request, bench, folder, lambda _: None, lambda *_: None, None))
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
