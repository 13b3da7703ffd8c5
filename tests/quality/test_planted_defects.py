"""The judge is judged: every planted defect must turn its case red and be named; without it the same case must be green."""

from __future__ import annotations

import pytest

from harness import symptoms
from harness.case import run_case
from harness.reference.defects import DEFECTS
from harness.scenario import job


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found_and_named(harness_workbench, defect):
    verdict, directory = run_case(symptoms.planted(defect), harness_workbench)
    assert (verdict.outcome, verdict.kind) == ("FAIL", DEFECTS[defect].kind)
    # A defect of all generators is rightly named by the first of them.
    assert DEFECTS[defect].component in (verdict.component, verdict.component.partition(".")[0])
    assert (directory.path / "plan.toml").exists()


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_same_case_without_the_defect_is_green(check_resume, defect):
    check_resume(symptoms.same_without(defect))


@pytest.mark.parametrize(("format", "parallelism"), symptoms.OVER_RANKS_IN)
@pytest.mark.parametrize("defect", symptoms.OVER_RANKS)
def test_a_planted_defect_is_named_over_a_change_of_the_number_of_ranks(harness_workbench, defect, format, parallelism):
    verdict, _ = run_case(symptoms.over_ranks(format, parallelism, defect), harness_workbench)
    assert (verdict.outcome, verdict.kind) == ("FAIL", DEFECTS[defect].kind)
    assert verdict.component == DEFECTS[defect].component


@pytest.mark.parametrize(("format", "parallelism"), symptoms.OVER_RANKS_IN)
def test_a_healthy_change_of_the_number_of_ranks_is_green(check_resume, format, parallelism):
    check_resume(symptoms.over_ranks(format, parallelism))


@pytest.mark.parametrize("scenario", symptoms.healthy(), ids=lambda scenario: scenario.name.removeprefix("healthy-"))
def test_a_healthy_job_is_green_whatever_it_is_made_of(check_resume, scenario):
    verdict = check_resume(scenario)
    assert verdict.max_loss_diff == 0.0


def test_ranks_without_rows_of_a_tensor_are_healthy_too(check_resume):
    # Eight rows of positions on six ranks: two each on four of them, none on the others.
    verdict = check_resume(
        job(
            "sharded",
            parallelism="fsdp2",
            ranks=6,
            steps=8,
            batches_per_epoch=4,
            save_every=2,
            faults="sigkill all ranks at step 5",
        )
    )
    assert verdict.max_loss_diff == 0.0


def test_every_two_values_of_two_settings_meet_in_the_healthy_jobs():
    values = list(symptoms.CHOICES.values())
    rows = list(symptoms.covering_rows(values))
    for i, ones in enumerate(values):
        for j, others in enumerate(values):
            if i < j:
                assert {(row[i], row[j]) for row in rows} == {(one, other) for one in ones for other in others}
    assert len(rows) <= 24


# The scenarios themselves, as a user runs them, with a defect planted into the trainer.
SCENARIOS = {
    "no-rng": ("test_truncated_shards.py::test_the_kill_alone_loses_nothing[single-2]", "FAIL diverged"),
    "no-optimizer": ("test_truncated_shards.py::test_the_kill_alone_loses_nothing[dcp-2]", "FAIL diverged"),
    "manifest-first": ("test_sigkill_in_mid_flush.py::test_all_ranks_die_in_the_middle_of_a_write[sharded-2]", "FAIL lost-work"),
    "in-place": ("test_sigkill_in_mid_flush.py::test_a_rank_dies_in_the_second_save_whatever_it_writes", "FAIL last-good-lost"),
    "unsafe-load": ("test_refusals.py::test_the_payloads_of_all_are_wrong[single-hostile-pickle]", "FAIL code-executed"),
}


@pytest.mark.parametrize("defect", SCENARIOS)
def test_a_planted_defect_turns_a_scenario_red(pytester, pytestconfig, tmp_path, defect):
    node, headline = SCENARIOS[defect]
    options = ["--harness-defect", defect, "--harness-runs", str(tmp_path / "runs"), "-p", "no:cacheprovider", "-q"]
    result = pytester.runpytest_subprocess(str(pytestconfig.rootpath / "scenarios" / node), *options, timeout=300)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*{headline}*", "*repeat: harness replay *plan.toml*"])
