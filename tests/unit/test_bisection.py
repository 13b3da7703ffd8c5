"""The search for the first bad one, on histories that are lists."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bisection import Trial, bisect


@dataclass
class Line:
    """A history of numbered ones; `answers` are g, b or s."""

    answers: str

    def between(self, good, bad):
        first, last = max(map(int, good)) + 1, int(bad)
        middle = (first + last - 1) / 2
        return [str(n) for n in sorted(range(first, last), key=lambda n: abs(n - middle))]

    def title(self, name):
        return f"number {name}"

    def search(self, say=lambda _: None):
        words = {"g": "good", "b": "bad", "s": "skip"}
        last = str(len(self.answers) - 1)
        return bisect(self, "0", last, lambda name: Trial(name, words[self.answers[int(name)]], "seen"), say)


@given(good=st.integers(1, 200), bad=st.integers(1, 200))
def test_the_first_bad_one_is_found_in_few_runs(good, bad):
    found = Line("g" * good + "b" * bad).search()
    assert found.first_bad == str(good)
    assert (found.problem, found.suspects) == ("", ())
    assert len(found.trials) <= 2 + (good + bad).bit_length()
    assert len({trial.name for trial in found.trials}) == len(found.trials)


@given(st.data())
def test_what_cannot_be_tried_is_passed_over_and_never_blamed_wrongly(data):
    good, bad = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    answers = list("g" * good + "b" * bad)
    for place in data.draw(st.sets(st.integers(1, good + bad - 2))) if good + bad > 2 else ():
        answers[place] = "s"
    found = Line("".join(answers)).search()
    if found.first_bad is not None:
        assert found.first_bad == str(good)
    else:
        assert str(good) in found.suspects
        assert all(answers[int(name)] == "s" for name in found.suspects[:-1])


def test_a_long_stretch_that_does_not_run_is_left_quickly():
    answers = "g" * 50 + "s" * 100 + "g" * 30 + "b" * 20
    found = Line(answers).search()
    assert found.first_bad == "180"
    assert len(found.trials) <= 20


def test_next_to_what_does_not_run_only_suspects_can_be_named():
    found = Line("ggssb").search()
    assert (found.first_bad, sorted(found.suspects)) == (None, ["2", "3", "4"])
    assert found.titles["2"] == "number 2"


@pytest.mark.parametrize(
    ("answers", "problem", "runs"),
    [("bb", "good-is-bad", 1), ("ggg", "bad-is-good", 2), ("sgb", "no-answer", 1), ("ggs", "no-answer", 2)],
)
def test_the_ends_are_tried_first(answers, problem, runs):
    found = Line(answers).search()
    assert (found.problem, found.first_bad, len(found.trials)) == (problem, None, runs)


def test_each_run_is_said_with_how_many_follow():
    said = []
    Line("gggggbbb").search(said.append)
    assert said[0] == "run 1, then about 3 more: number 0"
    assert said[1] == "  good: seen"
