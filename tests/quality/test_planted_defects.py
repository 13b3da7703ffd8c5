"""The judge is judged: a planted defect must turn a case red, and be named; the same case without it must be green."""

from __future__ import annotations

import pytest

from harness.case import run_case
from harness.scenario import job

KILL = "sigkill all ranks at step 14"
# defect → (case, kind, component)
PLANTED = {
    "no-rng": ({"format": "sharded", "faults": KILL}, "diverged", "rng"),
    "no-optimizer": ({"format": "dcp", "faults": KILL}, "diverged", "optimizer"),
    "no-scheduler": ({"format": "single", "faults": KILL}, "diverged", "scheduler"),
    "no-scaler": ({"format": "single", "faults": KILL, "precision": "fp16"}, "state-lost", "scaler"),
    "in-place": (
        {"format": "single", "faults": "sigkill rank 0 during write checkpoint.pt at 50% occurrence 12"},
        "last-good-lost",
        "checkpoint-files",
    ),
    "manifest-first": (
        {"format": "sharded", "faults": "sigkill all ranks during write step-00000016/rank1.bin.tmp at 50%"},
        "lost-work",
        "checkpoint-files",
    ),
    "unsafe-load": (
        {"format": "single", "faults": [KILL, "tamper newest with hostile-pickle"]},
        "code-executed",
        "checkpoint-files",
    ),
    "no-skip": (
        {"format": "single", "faults": ["overflow all ranks at batch 7", KILL], "precision": "fp16"},
        "numerics",
        "gradients",
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_found_and_named(harness_workbench, defect):
    case, kind, component = PLANTED[defect]
    verdict, directory = run_case(job(**case, ranks=2, defects=(defect,), name=f"planted-{defect}"), harness_workbench)
    assert (verdict.outcome, verdict.kind, verdict.component.partition(".")[0]) == ("FAIL", kind, component)
    assert (directory.path / "plan.toml").exists()


@pytest.mark.parametrize("defect", [name for name in PLANTED if name != "in-place"])
def test_the_same_case_without_the_defect_is_green(check_resume, defect):
    check_resume(job(**PLANTED[defect][0], ranks=2))


# The scenarios themselves, as a user runs them, with a defect planted into the trainer.
SCENARIOS = {
    "no-rng": ("test_truncated_shards.py::test_the_kill_alone_loses_nothing[single-2]", "FAIL diverged"),
    "no-optimizer": ("test_truncated_shards.py::test_the_kill_alone_loses_nothing[dcp-2]", "FAIL diverged"),
    "manifest-first": ("test_sigkill_in_mid_flush.py::test_all_ranks_die_in_the_middle_of_a_write[sharded-4]", "FAIL lost-work"),
    "unsafe-load": ("test_refusals.py::test_the_payloads_of_all_are_wrong[single-hostile-pickle]", "FAIL code-executed"),
    "in-place": ("test_sigkill_in_mid_flush.py::test_a_rank_dies_in_the_second_save_whatever_it_writes", "FAIL last-good-lost"),
}


@pytest.mark.parametrize("defect", SCENARIOS)
def test_a_planted_defect_turns_a_scenario_red(pytester, pytestconfig, tmp_path, defect):
    node, headline = SCENARIOS[defect]
    options = ["--harness-defect", defect, "--harness-runs", str(tmp_path / "runs"), "-p", "no:cacheprovider", "-q"]
    result = pytester.runpytest_subprocess(str(pytestconfig.rootpath / "scenarios" / node), *options, timeout=300)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*{headline}*", "*repeat: harness replay *plan.toml*"])
