"""Whether each restart began anew although a checkpoint stood there, from what was written down of the cases."""

from __future__ import annotations

import json

import pytest

from harness import check_plan
from harness.check import Case
from harness.check_command import _never_resumed, _writes_to_tell
from harness.check_plan import Job, Planned
from harness.oracle.verdict import Verdict
from harness.store import RunDirectory


def case(path, writes, resumed=()):
    """A case that held, with so many writes in each of its attempts."""
    for index, count in enumerate(writes):
        folder = RunDirectory(path).attempt(index)
        folder.mkdir(parents=True)
        files = {"event": "files", "time_s": 1.0, "moment": "end", "files": {"ckpt.json": [7, "ab"]}, "heads": {}}
        (folder / "attempt.jsonl").write_text(json.dumps(files) + "\n")
        write = {"event": "operation", "operation": "write", "path": "ckpt.json.tmp", "rank": 0, "n": 1}
        (folder / "operations.jsonl").write_text((json.dumps(write) + "\n") * count)
    return Case(path.name, Verdict(path.name, "", "PASS", resumed_from=resumed), path)


@pytest.fixture
def ran(tmp_path):
    """A control with five writes, and a kill whose restart did so many and seems to have begun with the first step."""

    def build(writes):
        return [
            (Planned(check_plan.CONTROL, "undisturbed"), case(tmp_path / "control", (5,))),
            (Planned(check_plan.KILLS, "killed", owed=True), case(tmp_path / "killed", (2, writes), (0,))),
        ]

    return build


def job(*told):
    return Job(1, 20, len(told), (), False, told)


@pytest.mark.parametrize(("writes", "anew"), [(3, False), (5, True)])
def test_where_the_first_line_of_a_log_does_not_tell_the_writes_do(ran, writes, anew):
    cases = ran(writes)
    assert _never_resumed(cases, _writes_to_tell(cases, job(10, 20))) is anew


@pytest.mark.parametrize("told", [(1, 2, 3), (0, 10, 20), ()])
def test_a_log_of_the_first_step_tells_by_itself(ran, told):
    cases = ran(3)
    assert _never_resumed(cases, _writes_to_tell(cases, job(*told)))
