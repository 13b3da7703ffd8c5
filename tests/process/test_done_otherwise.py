"""A job beside one that does the same work otherwise; one version that saves, another that resumes. On real processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.case import run_case
from harness.scenario import Scenario, job

KINDS = Path(__file__).resolve().parents[1] / "quality" / "kinds"


@pytest.mark.parametrize("format", ["sharded", "dcp-async"])
def test_saving_does_not_change_the_training_of_the_reference(check_resume, format):
    verdict = check_resume(
        job(format, steps=12, batches_per_epoch=6, save_every=3, compare_with="unsaved", faults="sigkill all ranks at step 8")
    )
    assert verdict.max_loss_diff == 0.0


@pytest.mark.parametrize(("mode", "kind"), [("swap-and-forget", "diverged"), ("both", None)])
def test_a_save_that_changes_the_weights_is_seen_without_an_interruption(harness_workbench, mode, kind):
    start = ("{python}", str(KINDS / "K07" / "ema.py"), "--out", "{ckpt}")
    workload = {"kind": "command", "probe": True, "command": (*start, "--mode", mode), "control_command": (*start, "--no-save")}
    case = {"name": f"otherwise-{mode}", "workload": workload, "world_sizes": (1,), "compare_with": "control", "max_attempts": 1}
    verdict, _ = run_case(Scenario.build(case), replace(harness_workbench, golden_launch="warm"))
    assert verdict.kind == kind
    if kind:
        assert verdict.component == "model"
        assert verdict.root is not None
        assert "before any resume" in verdict.root.message


def test_restarts_run_in_their_own_interpreter(harness_workbench, tmp_path):
    other = tmp_path / "python-other"
    other.write_text(f'#!/bin/sh\nexport OTHER_INTERPRETER=1\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    script = tmp_path / "train.py"
    script.write_text((KINDS / "K01" / "reordered.py").read_text() + "print(os.environ.get('OTHER_INTERPRETER'))\n")
    command = ("{python}", str(script), "--out", "{ckpt}")
    workload = {"kind": "command", "probe": True, "command": command, "python": sys.executable, "resume_python": str(other)}
    faults = ("sigkill all ranks at step 12",)
    case = {"name": "two-versions", "workload": workload, "world_sizes": (1,), "faults": faults, "launch": "cold"}
    verdict, directory = run_case(Scenario.build(case), harness_workbench)
    assert verdict.outcome == "PASS"
    assert (directory.attempt(1) / "launcher.stdout").read_text().split() == ["1"]
