"""What all tests of this repository share."""

from __future__ import annotations

import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts tests in the background has Ctrl-C ignored, by all that they start too; some send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester"]


@pytest.fixture
def explored(harness_workbench, tmp_path):
    """Explores the second of three saves of a small job with a planted defect, and gives what was found."""
    from harness.explore import explore, record
    from harness.scenario import job

    def run(format, *defects, ranks=1, kill=True, power=True):
        small = {"steps": 3, "save_every": 1, "keep_last": 1, "batches_per_epoch": 2, "width": 8}
        name = "-".join(["explored", format, *defects])
        recordings = record(job(format, ranks=ranks, defects=defects, name=name, **small), harness_workbench, tmp_path)
        second = recordings.recorded.trace.saves()[1]
        return explore(recordings, second, harness_workbench, tmp_path / "states", kill=kill, power=power)

    return run


@pytest.fixture
def repeat(harness_workbench):
    """Runs the replay file of a cause for real, from the first process to the last, and gives the verdict."""
    from harness.case import run_case
    from harness.plan import read_plan

    def run(cause):
        return run_case(read_plan(cause.kept[0] / "plan.toml").scenario, harness_workbench)[0]

    return run
