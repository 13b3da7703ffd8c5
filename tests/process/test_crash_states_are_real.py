"""The ground truth of the crash states: real jobs die at their points, and what is found is what had been rebuilt, byte for byte.

The sentences of a rebuilt state are run as a case. At every kind of operation of each format, between operations and within
writes, in the order of the undisturbed run and in other possible ones, all ranks are killed for real.
"""

from __future__ import annotations

import pytest
from crash_points import record_job

from harness.case import Workbench
from harness.crash_states import CrashState
from harness.grammar import parse
from harness.session import Session

JOBS = [("single", 1), ("single", 2), ("sharded", 2), ("sharded", 4), ("dcp", 2), ("dcp-async", 2), ("safetensors", 1)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    session = Session.new()
    folder = tmp_path_factory.mktemp("bench")
    yield Workbench(folder / "runs", folder / "baselines", session.warm())
    session.close()


def kind_of(state: CrashState) -> tuple[str, str, bool]:
    """What the sample must hold one of: when it dies, at which operation, and whether in the order of the undisturbed run."""
    point = parse(state.faults[0]).point
    return point.moment, point.operation, state.natural


def sample(states: tuple[CrashState, ...]) -> list[CrashState]:
    """One state of each kind, from the middle of those of its kind; for torn writes the first and the last as well."""
    kinds: dict[tuple[str, str, bool], list[CrashState]] = {}
    for state in states:
        kinds.setdefault(kind_of(state), []).append(state)
    chosen = [members[len(members) // 2] for members in kinds.values()]
    torn = [state for state in states if state.torn is not None]
    return list({state.faults: state for state in (*chosen, *torn[:1], *torn[-1:])}.values())


@pytest.mark.parametrize(("format", "ranks"), JOBS)
def test_a_killed_job_leaves_what_was_rebuilt(tmp_path, bench, format, ranks):
    job = record_job(tmp_path / "job", bench, format, ranks)
    states = sample(job.points.enumerate(power=False).states)
    operations = {operation.operation for operation in job.points.operations}
    assert {kind_of(state)[1] for state in states} >= operations
    assert {"open", "write", "fsync", "rename"} <= operations
    for state in states:
        run = job.crash(*state.faults)
        assert job.found() == job.expected(state), state.faults
        assert sorted(record["fault"] for record in run.attempts[0].of("fired")) == sorted(state.faults)
        assert run.attempts[0].of("escaped") == []
