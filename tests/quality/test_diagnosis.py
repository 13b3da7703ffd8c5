"""The diagnosis of real runs: planted defects of the reference trainer, with the pattern and the moment that must be named."""

from __future__ import annotations

import json

import pytest

from harness import symptoms
from harness.case import run_case

BOTH = ("save", "load")  # nobody but the trainer has read the file


@pytest.mark.parametrize(
    ("defect", "pattern", "lost"),
    [
        ("no-scheduler", "schedule-restarted", BOTH),
        ("no-optimizer", "fresh", BOTH),
        ("no-scaler", "fresh", BOTH),
        ("repeats-batch", "batch-repeated", ("after-load",)),
        ("skips-batch", "batch-skipped", ("after-load",)),
        ("ema-frozen", "frozen", ("after-load",)),
        ("stops-early", "counts-what-is-left", ("after-load",)),
        ("from-scratch", "from-scratch", ("load",)),
    ],
)
def test_a_planted_defect_is_diagnosed(harness_workbench, defect, pattern, lost):
    verdict, directory = run_case(symptoms.planted(defect), harness_workbench)
    found = verdict.diagnosis
    assert found is not None
    assert (found.pattern, found.lost) == (pattern, lost)
    assert found.component.startswith(verdict.component)
    assert found.fault is not None
    assert found.text
    assert json.loads(directory.verdict_file.read_text())["diagnosis"] == found.to_json()


def test_a_planted_defect_is_diagnosed_over_a_change_of_the_number_of_ranks(harness_workbench):
    verdict, _ = run_case(symptoms.over_ranks("sharded", "zero1", "no-scheduler"), harness_workbench)
    assert verdict.diagnosis is not None
    assert (verdict.diagnosis.pattern, verdict.diagnosis.lost) == ("schedule-restarted", BOTH)


def test_two_explanations_that_the_records_do_not_tell_apart_are_both_given(harness_workbench):
    # Resumed at the first batch of the second epoch: the first epoch's order, and the data from their first batch on, are one.
    verdict, _ = run_case(symptoms.planted("no-data"), harness_workbench)
    found = verdict.diagnosis
    assert found is not None
    assert found.pattern is None
    assert {"data-restarted", "epoch-off"} <= {pattern.name for pattern in found.patterns}
    assert "the records fit each of these" in found.text
