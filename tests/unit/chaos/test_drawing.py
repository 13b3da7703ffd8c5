"""Schedules: possible, repeatable, of the families that were asked for, and most of them new."""

from __future__ import annotations

import sys

import pytest
from known_jobs import job

from harness.chaos.coverage import Coverage, choose
from harness.chaos.drawing import DEFAULT_FAMILIES, FAMILIES, draw_schedules
from harness.errors import UsageError
from harness.fault import DamageFault, HoldFault, NumericFault, OperationPoint
from harness.scenario import Scenario

COMMAND = {"kind": "command", "command": ("true", "{ckpt}")}


def drawn(tmp_path, known=None, families=FAMILIES, seed=3, count=60):
    return draw_schedules(known or job(ranks=2, sizes=(1, 4), scaled=True), families, seed, count, tmp_path)


def test_every_schedule_is_a_possible_scenario(tmp_path):
    schedules = drawn(tmp_path, count=200)
    assert len(schedules) > 100
    for schedule in schedules:
        facts = {"faults": schedule.faults, "world_sizes": schedule.world_sizes, "max_attempts": schedule.max_attempts}
        Scenario.build({"workload": COMMAND, "expect": schedule.expect, **facts})
        assert len(schedule.points) == len(schedule.faults)


def test_the_same_seed_draws_the_same(tmp_path):
    assert drawn(tmp_path, seed=5) == drawn(tmp_path, seed=5)
    assert drawn(tmp_path, seed=5) != drawn(tmp_path, seed=6)


def test_every_family_is_drawn_and_no_other(tmp_path):
    effects = {point.effect for schedule in drawn(tmp_path, count=300) for point in schedule.points}
    assert {"sigkill", "sigterm", "ENOSPC", "quota", "hold", "short-write", "overflow", "power-cut", "truncate"} <= effects
    only = {point.effect for schedule in drawn(tmp_path, families=("sigterm",)) for point in schedule.points}
    assert only == {"sigterm"}
    assert "power-cut" not in DEFAULT_FAMILIES


def test_several_interruptions_are_the_rule(tmp_path):
    counts = [
        len({f.attempt for f in s.parsed if not isinstance(f, (DamageFault, NumericFault))}) for s in parsed(drawn(tmp_path))
    ]
    assert sum(count > 1 for count in counts) > len(counts) / 2


def parsed(schedules):
    return [type("Parsed", (), {"parsed": Scenario.model_construct(faults=s.faults).parsed_faults()}) for s in schedules]


def test_damage_leaves_it_open_whether_the_job_goes_on(tmp_path):
    for schedule in drawn(tmp_path, families=("kills", "damage"), count=200):
        damaged = any(point.phase == "rest" for point in schedule.points)
        assert schedule.expect == ("resumes-or-refuses" if damaged else "resumes")


def test_nothing_comes_of_a_job_to_which_nothing_can_be_done(tmp_path):
    assert drawn(tmp_path, known=job(), families=("world-size",)) == []


def test_a_job_that_gets_over_errors_is_not_ended_by_them(tmp_path):
    schedules = drawn(tmp_path, known=job(gives_up=False), families=("kills", "errors"), count=200)
    failing = [schedule for schedule in schedules if any("ENOSPC" in fault or "EIO" in fault for fault in schedule.faults)]
    assert failing
    assert all(any("sigkill" in fault for fault in schedule.faults) for schedule in failing)


def test_of_what_is_drawn_that_is_chosen_which_adds_most(tmp_path):
    schedules = drawn(tmp_path, count=100)
    first, second = choose(schedules, 10, Coverage()), schedules[:10]

    def points(some):
        return {point for schedule in some for point in schedule.points}

    assert len(points(first)) > len(points(second))
    covered = Coverage()
    for schedule in first:
        covered.add(schedule.points)
    assert points(choose(schedules, 5, covered)) - points(first)


def test_without_hypothesis_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(UsageError, match=r"resume-harness\[chaos\]"):
        drawn(tmp_path)


def operations_of(schedules, wanted):
    """Of each drawn fault at an operation: the number of ranks of its attempt, and the fault."""
    for schedule in schedules:
        for fault in Scenario.model_construct(faults=schedule.faults).parsed_faults():
            if wanted(fault):
                yield schedule.world_sizes[fault.attempt], fault


def test_on_another_number_of_ranks_only_the_first_of_each_kind_is_known_to_come(tmp_path):
    at_operations = list(
        operations_of(
            drawn(tmp_path, families=("kills", "errors", "world-size"), count=300),
            lambda fault: isinstance(getattr(fault, "point", None), OperationPoint),
        )
    )
    assert {size for size, _ in at_operations} == {1, 2, 4}
    assert {fault.point.occurrence for size, fault in at_operations if size == 2} > {1}
    assert {fault.point.occurrence for size, fault in at_operations if size != 2} == {1}


def test_what_comes_after_the_end_of_an_attempt_is_not_held_in_it(tmp_path):
    """Rank 0 writes before rank 1 does, and renames after it: of these two the write alone can be held until rank 1 writes."""
    held = [h for _, h in operations_of(drawn(tmp_path, count=400), lambda fault: isinstance(fault, HoldFault))]
    of_rank_0 = {(h.point.operation, h.until.operation) for h in held if h.who.ranks == (0,)}
    assert of_rank_0 == {("write", "write")}
    assert {(h.point.operation, h.until.operation) for h in held if h.who.ranks == (1,)} == {
        ("write", "rename"),
        ("write", "fsync"),
    }
