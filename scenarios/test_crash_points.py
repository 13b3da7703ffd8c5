"""Every crash point of a save, and the power cut: the states are read off a recorded run, and each is given to a real resume.

Here a sample of the states, spread over all of a save, and power cuts spelled out for every format. All states of every format,
of the recovery, and with real file systems: tests/quality/test_crash_points_of_formats.py, tests/process.
"""

from __future__ import annotations

import pytest
from saves import COMMIT, SAVE, short_job

from harness.case import run_case
from harness.check_request import REFERENCE
from harness.explore import explore, record
from harness.scenario import FORMATS, job

NOTHING = "keeping no names and no data"


def explored(workbench, folder, format, limit):
    recordings = record(job(format, **REFERENCE, name=f"points-{format}"), workbench, folder)
    return explore(recordings, recordings.recorded.trace.saves()[1], workbench, folder / "states", limit=limit)


@pytest.mark.parametrize(("format", "limit"), [("single", 12), ("sharded", 6)])
def test_a_save_survives_a_crash_wherever_it_comes(harness_workbench, tmp_path, format, limit):
    found = explored(harness_workbench, tmp_path, format, limit)
    assert (found.outcome, found.inconclusive, found.causes) == ("PASS", "", ())
    assert found.num_resumes == limit


def commit(format):
    return COMMIT.get(format, f"{SAVE}/manifest.json")


@pytest.mark.parametrize("format", FORMATS)
def test_the_power_goes_right_after_a_save_was_reported(check_resume, format):
    # The first operation after the report is the rotation's.
    old = "step-00000002.pt" if format == "single" else "step-00000002/manifest.json"
    verdict = check_resume(short_job(format, faults=f"power-cut {NOTHING} before unlink {old} by rank 0"))
    assert verdict.resumed_from == (6,)


@pytest.mark.parametrize("lost", ["no names and no data", "all names and zeroed data", "all names and torn data at 50%"])
@pytest.mark.parametrize("format", ["single", "sharded"])
def test_the_power_goes_right_after_the_commit(check_resume, format, lost):
    verdict = check_resume(short_job(format, faults=f"power-cut keeping {lost} after rename {commit(format)} by rank 0"))
    assert verdict.resumed_from == ((4,) if lost.startswith("no") else (6,))


def test_the_power_goes_after_a_rename_without_a_sync(harness_workbench):
    cut = f"power-cut {NOTHING} before unlink step-00000002.pt by rank 0"
    verdict, _ = run_case(short_job("single", faults=cut, defects=("no-fsync",), name="unsynced"), harness_workbench)
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", "last-good-lost", "checkpoint-files")


def test_the_power_goes_twice(check_resume):
    cuts = [
        f"power-cut keeping all names and empty data before rename {commit('sharded')}.tmp by rank 0",
        f"power-cut {NOTHING} before fsync {SAVE} occurrence 2 by rank 0 attempt 1",
    ]
    assert check_resume(short_job("sharded", faults=cuts)).resumed_from == (4, 4)
