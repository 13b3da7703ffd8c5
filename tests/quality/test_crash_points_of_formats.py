"""All crash states of one save, in every format: a healthy trainer resumes exactly from each, and so does its recovery.

Real processes; the figures that are printed are asserted: everything that was enumerated was judged.
"""

from __future__ import annotations

import pytest

from harness.check import recovery_window, untidy_states
from harness.check_request import REFERENCE
from harness.explore import explore, record, record_recovery
from harness.scenario import job


def recorded(workbench, folder, format, **settings):
    return record(job(format, **{**REFERENCE, "width": 8, **settings}, name=f"points-{format}"), workbench, folder)


def everything_passed(found):
    assert (found.outcome, found.inconclusive, [cause.text for cause in found.causes]) == ("PASS", "", [])
    assert sum(judged.num_states for judged in found.judged) == len(found.enumeration.states)
    assert found.num_resumes == len({state.digest for state in found.enumeration.states})


@pytest.mark.parametrize("format", ["single", "sharded", "safetensors"])
def test_every_crash_state_of_a_save(harness_workbench, tmp_path, format):
    recordings = recorded(harness_workbench, tmp_path, format)
    everything_passed(explore(recordings, recordings.recorded.trace.saves()[1], harness_workbench, tmp_path / "states"))


@pytest.mark.parametrize("format", ["dcp", "dcp-async"])
def test_a_sample_of_the_crash_states_of_dcp(harness_workbench, tmp_path, format):
    recordings = recorded(harness_workbench, tmp_path, format)
    window = recordings.recorded.trace.saves()[1]
    found = explore(recordings, window, harness_workbench, tmp_path / "states", limit=16)
    assert (found.outcome, found.inconclusive, [cause.text for cause in found.causes]) == ("PASS", "", [])
    assert (found.num_resumes, found.left_out) == (16, 0)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("format", ["single", "sharded"])
def test_every_crash_state_of_a_recovery(harness_workbench, tmp_path, format, place):
    recordings = recorded(harness_workbench, tmp_path, format, ranks=1)
    points = recordings.points(recordings.recorded.trace.saves()[1])
    state = untidy_states(points, recordings.recorded.scenario.workload.commit_pattern)[place]
    recovery = record_recovery(recordings.recorded, state, harness_workbench, tmp_path / "again")
    found = explore(recovery, recovery_window(recovery), harness_workbench, tmp_path / "states")
    everything_passed(found)
    # The left-overs of the first crash are part of what the second one leaves.
    assert {judged.state.faults[0].split()[-1] for judged in found.judged} == {"1"}
