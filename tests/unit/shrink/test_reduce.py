"""What is simpler than a case."""

from __future__ import annotations

import pytest

from harness.scenario import Scenario, job
from harness.shrink.reduce import candidates, cost, without

COMMAND = {"kind": "command", "command": ("true", "{ckpt}")}


def case(*faults, sizes=(1,), attempts=5):
    return Scenario.build({"workload": COMMAND, "world_sizes": sizes, "faults": faults, "max_attempts": attempts})


THREE = case(
    "sigkill rank 0 during write *.tmp at 37% occurrence 3",
    "truncate newest to 10%",
    "EIO rank 0 on fsync *.tmp occurrence 2 attempt 1",
    "sigterm all ranks at step 9 by rank 0 attempt 2",
)


def reachable(scenario, steps=12):
    return [simpler for _, simpler in candidates(scenario, steps)]


def test_every_candidate_is_simpler_and_possible():
    found = reachable(THREE)
    assert len(found) > 50
    for simpler in found:
        assert cost(simpler) < cost(THREE)
        Scenario.build(simpler.model_dump())


def test_the_most_drastic_come_first():
    assert [len(simpler.faults) for simpler in reachable(THREE)][:3] == [2, 2, 3]


def test_attempts_behind_one_that_is_gone_move_up():
    changes = without(THREE, {0})
    assert changes["faults"] == (
        "truncate newest to 10%",
        "EIO rank 0 on fsync *.tmp occurrence 2",
        "sigterm all ranks at step 9 by rank 0 attempt 1",
    )
    assert changes["max_attempts"] == 4


def test_a_fault_beside_another_goes_with_its_attempt():
    two = case(
        "short-write rank 0 on write *.tmp at 30%",
        "sigkill all ranks at step 3 by rank 0",
        "sigkill all ranks at step 5 attempt 1",
    )
    assert without(two, {1})["faults"] == ("short-write rank 0 on write *.tmp at 30%", "sigkill all ranks at step 5 attempt 1")


def test_numbers_of_ranks_go_down_and_faults_follow():
    four = case("sigkill rank 3 before write x occurrence 2", "sigkill all ranks at step 3 by rank 2 attempt 1", sizes=(4, 3, 2))
    one = next(simpler for simpler in reachable(four) if simpler.world_sizes == (1, 1, 1))
    assert one.faults == ("sigkill rank 0 before write x occurrence 2", "sigkill all ranks at step 3 by rank 0 attempt 1")
    assert any(len(set(simpler.world_sizes)) == 1 and simpler.world_sizes[0] == 2 for simpler in reachable(four))


def test_what_allowed_a_refusal_goes_and_with_it_the_refusal():
    allowed = case("sigkill all ranks at step 3 by rank 0").model_copy(update={"expect": "resumes-or-refuses"})
    assert any(simpler.expect == "resumes" and simpler.faults == allowed.faults for simpler in reachable(allowed))
    damaged = case("sigkill all ranks at step 3 by rank 0", "delete newest").model_copy(update={"expect": "resumes-or-refuses"})
    other = case("sigkill all ranks at step 3 by rank 0", sizes=(2, 1)).model_copy(update={"expect": "resumes-or-refuses"})
    assert not any(simpler.expect == "resumes" and simpler.world_sizes == (2, 1) for simpler in reachable(other))
    assert not any(simpler.expect == "resumes" for simpler in reachable(damaged))


def test_a_step_is_simpler_than_an_operation_and_an_earlier_one_than_a_later():
    one = case("sigkill rank 0 before write x occurrence 4")
    sentences = [simpler.faults[0] for simpler in reachable(one) if simpler.faults]
    assert sentences[0] == "sigkill all ranks at step 1 by rank 0"
    assert "sigkill rank 0 before write x" in sentences
    step = case("sigkill all ranks at step 9 by rank 0")
    assert next(simpler.faults for simpler in reachable(step) if simpler.faults) == ("sigkill all ranks at step 1 by rank 0",)


def test_the_smallest_case_has_nothing_below_it():
    assert reachable(case()) == []


def test_the_reference_trainer_gets_plainer_and_smaller():
    large = job("sharded", ranks=2, faults="sigkill all ranks at step 3", precision="fp16", width=64, steps=8, ema=0.9)
    found = reachable(large, 8)
    settings = [simpler.workload for simpler in found]
    assert any(one.precision == "fp32" and one.ema == 0 for one in settings)
    assert any(one.width == 8 for one in settings)
    assert any(one.steps < 8 for one in settings)
    assert all(simpler.world_sizes for simpler in found)


@pytest.mark.parametrize("limit", [200])
def test_going_down_always_ends(limit):
    """Each step makes the cost smaller; a search that takes any of them comes to an end."""
    now, steps = THREE, 0
    while (simpler := next(iter(reachable(now)), None)) is not None:
        now, steps = simpler, steps + 1
        assert steps < limit
    assert now.faults == ()


def test_steps_become_earlier_together():
    """Where a job fails only if it is stopped twice at the same step, no step can become earlier alone."""
    twice = case("sigkill all ranks at step 7 by rank 0", "sigkill all ranks at step 7 by rank 0 attempt 1")
    both = ("sigkill all ranks at step 4 by rank 0", "sigkill all ranks at step 4 by rank 0 attempt 1")
    assert both in [simpler.faults for simpler in reachable(twice)]
    apart = case("sigkill all ranks at step 5", "EIO rank 0 on open x attempt 1", "sigkill all ranks at step 9 attempt 2")
    earlier = ("sigkill all ranks at step 3", "EIO rank 0 on open x attempt 1", "sigkill all ranks at step 7 attempt 2")
    assert earlier in [simpler.faults for simpler in reachable(apart)]


def test_a_request_becomes_a_kill_together_with_what_it_made_necessary():
    """What the request has saved had to be deleted again; one without the other shows nothing."""
    asked = case("sigkill all ranks at step 4", "sigterm all ranks at step 4 attempt 1", "delete newest attempt 2")
    found = {tuple(scenario.faults) for _, scenario in candidates(asked, 12)}
    assert ("sigkill all ranks at step 4", "sigkill all ranks at step 4 attempt 1") in found
