"""A job that is watched from inside says its parts by name: which of them are wrong, and what stands in their place."""

from __future__ import annotations

import pytest
from test_patterns import Case

from harness.plan import make_plan
from harness.scenario import Command
from harness.store import Run


def foreign(run: Run) -> Run:
    case = run.plan.scenario.model_copy(update={"workload": Command(command=("python", "train.py"), probe=True)})
    return Run(run.directory, make_plan(case), run.attempts)


MOMENTS = {f"0:0.{name}.{moment}": f"{name} {moment}" for name in "ab" for moment in ("exp_avg", "exp_avg_sq")}


def probed(loaded, *, new=None) -> Case:
    """A job that is watched from inside, which says its parts: as they should be, after the load, and before the first batch."""
    found = Case()
    found.run = foreign(found.run)
    for rank, log in found.golden.ranks.items():
        for record in log.of("state"):
            record["parts"] = {"optimizer": MOMENTS}
        log.records.insert(0, {**log.of("state")[0], "moment": "load", "step": 0, "parts": {"optimizer": new or {}}})
        for record in found.run.attempts[1].ranks[rank].of("state"):
            record["parts"] = {"optimizer": loaded}
        found.loaded(rank, "optimizer", "other")
    return found


def test_moments_that_are_swapped_in_a_job_that_is_watched_from_inside():
    swapped = {**MOMENTS, "0:0.a.exp_avg": "b exp_avg", "0:0.b.exp_avg": "a exp_avg"}
    diagnosis = (found := probed(swapped)).diagnosis()
    assert found.names() == ["moments-swapped"]
    assert "optimizer.a.exp_avg has that of optimizer.b.exp_avg" in diagnosis.text
    assert diagnosis.parts == ("optimizer.a.exp_avg", "optimizer.b.exp_avg")
    assert not any("which of its tensors" in text for text in diagnosis.unknown)
    assert diagnosis.components == ("optimizer",)


def test_parts_that_are_those_of_a_new_job():
    new = {"0:0.a.exp_avg": "zeros"}
    found = probed({**MOMENTS, **new}, new=new)
    assert found.names() == ["fresh"]
    assert "as if they had been left out: optimizer.a.exp_avg (" in found.diagnosis().text
    assert probed({**MOMENTS, **new}, new={"0:0.a.exp_avg": "else"}).names() == []


def test_moments_that_a_new_job_does_not_have_yet_either_are_as_in_one():
    kept = {name: text for name, text in MOMENTS.items() if not name.startswith("0:0.a.")}
    found = probed(kept, new={"0:0.b.exp_avg": "zeros"})
    assert found.names() == ["fresh"]
    assert "as if they had been left out: optimizer.a.exp_avg, optimizer.a.exp_avg_sq (" in found.diagnosis().text
    assert probed(kept, new={"0:0.a.exp_avg": "zeros"}).names() == []


def test_a_set_of_moments_that_is_gone_is_named_once():
    names = "['exp_avg', 'exp_avg_sq']"
    kept = {name: text for name, text in MOMENTS.items() if not name.startswith("0:0.a.")}
    found = probed({**kept, "0:0.a": "[]"})
    for log in found.golden.ranks.values():
        for record in log.of("state", moment="save"):
            record["parts"]["optimizer"] = {**MOMENTS, "0:0.a": names}
    assert found.diagnosis().parts == ("optimizer.a.exp_avg", "optimizer.a.exp_avg_sq")


def test_parts_of_which_only_one_side_speaks_tell_nothing():
    found = probed(MOMENTS)
    for record in found.run.attempts[1].ranks[0].of("state"):
        del record["parts"]
    assert found.diagnosis().parts == ()


def with_variables(value: str, *, late: bool = False) -> Case:
    """The same job, which says what its variables hold: `patience` is 0 before the first batch, and 4 at the resume."""
    found = Case()
    found.run = foreign(found.run)
    for rank, log in found.golden.ranks.items():
        first = {**log.of("state")[0], "moment": "load", "step": 0, "attributes": {"patience": "=0", "other": "=1"}}
        log.records.insert(0, first)
        for record in log.of("state", moment="save"):
            record |= {"moment": "next", "attributes": {"patience": f"={record['step'] // 3}"}}
        for record in found.run.attempts[1].ranks[rank].of("state", moment="load"):
            record["attributes"] = {"patience": "=4" if late else value}
        for record in found.run.attempts[1].ranks[rank].of("state", moment="save"):
            record |= {"moment": "next", "attributes": {"patience": value}}
    return found.felt()


def test_a_variable_that_begins_anew_is_named_with_its_values():
    diagnosis = with_variables("=0").diagnosis()
    assert [(one.name, one.component) for one in diagnosis.patterns] == [("fresh", "counters")]
    assert (
        "the variable patience has the value of a new job, as if it had been left out (0 instead of 4)" in diagnosis.text.lower()
    )
    assert diagnosis.lost == ("save", "load")


@pytest.mark.parametrize(
    ("name", "value", "pattern", "words"),
    [
        ("model.0.training", "=False", "train-mode", "dropout and normalisation do other things"),
        ("model.0.requires_grad", "=False of 0.weight", "requires-grad", "what was trained is frozen"),
    ],
)
def test_another_mode_of_the_model_is_told(name, value, pattern, words):
    found = with_variables("=4")
    for log in found.golden.ranks.values():
        for record in log.of("state"):
            record["modes"] = {name: "=True"}
    for log in found.run.attempts[1].ranks.values():
        for record in log.of("state", moment="load"):
            record["modes"] = {name: value}
    diagnosis = found.diagnosis()
    assert [(one.name, one.component) for one in diagnosis.patterns] == [(pattern, "model.modes")]
    assert words in diagnosis.text
    assert f"{name}: {value[1:]} instead of True" in diagnosis.patterns[0].evidence


def test_a_variable_that_is_wrong_otherwise_or_later_does_not_begin_anew():
    assert with_variables("=3").names() == []
    assert with_variables("=0", late=True).names() == []
