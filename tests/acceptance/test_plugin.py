"""The plugin as a user of another repository meets it: collected, passed, failed, distributed, interrupted."""

from __future__ import annotations

import pytest

SUITE = """
import sys
from harness import job

def test_resumes(check_resume):
    verdict = check_resume(job("single", ranks=1, steps=8, faults="sigkill rank 0 at step 6"))
    assert verdict.outcome == "PASS"
    assert "torch" not in sys.modules

def test_loses_its_optimizer(check_resume):
    check_resume(job("single", ranks=1, steps=8, faults="sigkill rank 0 at step 6", defects=("no-optimizer",)))

def test_never_fires(check_resume):
    check_resume(job("single", ranks=1, steps=8, faults="sigkill rank 0 before write nothing"))

def test_is_wrong(check_resume):
    check_resume(job("single", ranks=5, steps=8, faults="sigkill rank 9 at step 3"))
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_verdicts_become_results(pytester, workers):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-n", workers, "-p", "no:randomly", timeout=300)
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*FAIL diverged: loss differs at step *",
            "*repeat: harness replay *plan.toml*",
        ]
    )
    result.stdout.fnmatch_lines(["*INCONCLUSIVE fault-did-not-fire*"])
    result.stdout.fnmatch_lines(["*2 problems; nothing was started*"])
    result.stdout.fnmatch_lines(["*resume-harness: 3 cases; losses bit-equal in *"])
    kept = sorted(path.name for path in (pytester.path / "runs").iterdir() if path.name.startswith("test_"))
    assert len(kept) == 2  # the case that passed is removed, the one that was refused never began


def test_a_suite_that_does_not_use_it_is_not_slowed_down_by_torch(pytester):
    pytester.makepyfile("import sys\ndef test_plain(): assert 'torch' not in sys.modules")
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=120)
    result.assert_outcomes(passed=1)
    assert not (pytester.path / "runs").exists()


def test_a_run_directory_that_cannot_be_written_to(pytester):
    pytester.makepyfile(SUITE)
    pytester.path.joinpath("file").write_text("")
    result = pytester.runpytest_subprocess("--harness-runs", "file/runs", "-p", "no:randomly", timeout=120)
    assert result.ret == 2
    result.stdout.fnmatch_lines(["*cannot write to the run directory*--harness-runs DIR*"])
