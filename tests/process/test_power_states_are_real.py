"""The ground truth of the power-loss states: at a sample of the points of real saves the power of a real disk is cut.

What ext4 and XFS keep there must be a state that the model builds for that cut, for the reference trainer and for one that never
syncs its files; and the resume from it is judged as the model's states are.
"""

from __future__ import annotations

import re

import pytest
from disks import able

from harness import tree
from harness.case import Workbench
from harness.crash_states import CrashState
from harness.errors import CapabilityError
from harness.explore import record
from harness.fault import FILESYSTEMS
from harness.power_check import RealCut, RealPower, real_power_states
from harness.scenario import job
from harness.session import Session
from harness.store import read_run

POINTS = 8
JOBS = [("single", 1, ()), ("single", 1, ("no-fsync",)), ("sharded", 2, ()), ("sharded", 2, ("no-fsync",))]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    session = Session.new()
    folder = tmp_path_factory.mktemp("bench")
    yield Workbench(folder / "runs", folder / "baselines", session.warm())
    session.close()


def files_of_state(state: CrashState, contents: tree.Contents) -> dict[str, str]:
    return {stable(path): contents.of(entry.pieces) for path, entry in state.tree.items() if entry.kind == "file"}


def files_found(cut: RealCut) -> dict[str, str]:
    """What the first attempt left, before the second one began."""
    files = read_run(cut.judged.path).attempts[0].files("end")
    return {stable(path): digest for path, (_, digest) in files.items()}


def stable(path: str) -> str:
    return re.sub(r"\.\d+-[0-9a-f]{8}\.tmp$", ".*.tmp", path)


@pytest.mark.parametrize(("format", "ranks", "defects"), JOBS)
def test_a_real_power_cut_leaves_a_state_of_the_model(tmp_path, bench, format, ranks, defects):
    small = {"steps": 3, "save_every": 1, "keep_last": 1, "batches_per_epoch": 2}
    recordings = record(job(format, ranks=ranks, name="job", defects=defects, **small), bench, tmp_path)
    assert (recordings.unstable, recordings.unseen) == ("", ())
    trace = recordings.recorded.trace
    window = trace.saves()[1]
    states = recordings.points(window).enumerate(kill=True, power=True).states
    contents = tree.Contents(trace.data)
    for filesystem in FILESYSTEMS:
        if not able(filesystem):
            with pytest.raises(CapabilityError, match="power-cut keeping"):
                real_power_states(recordings, window, bench, tmp_path / filesystem, filesystem, POINTS)
            continue
        real = real_power_states(recordings, window, bench, tmp_path / filesystem, filesystem, POINTS)
        assert [cut.faults for cut in real.outside] == []
        for cut in real.cuts:
            built = [files_of_state(state, contents) for state in states if state.cut == cut.judged.state.cut]
            assert files_found(cut) in built, cut.faults
        judged_as_expected(real, broken=bool(defects))


def judged_as_expected(real: RealPower, *, broken: bool) -> None:
    assert len(real.cuts) == POINTS
    assert real.sample.startswith(f"{POINTS} of {real.num_points} points")
    assert any(cut.lost for cut in real.cuts)
    verdicts = {(cut.judged.verdict.outcome, cut.judged.verdict.kind) for cut in real.cuts}
    assert verdicts == ({("FAIL", "last-good-lost")} if broken else {("PASS", None)})
