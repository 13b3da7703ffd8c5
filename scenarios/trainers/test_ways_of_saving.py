"""The documented ways of saving and resuming of the same trainers, each killed once between two saves.

What is not exact is an expected failure with its cause, as in `test_trainers.py`, and in docs/findings.md in words. What is exact
must stay so.
"""

from __future__ import annotations

import shutil

import pytest
from lines import StillFailsError, command

from harness.case import run_case
from harness.check_request import parse_command
from harness.report.text import render
from harness.scenario import Scenario
from harness.warming import choose_launch

# huggingface/accelerate#4203
ORDER = ("diverged", "rng.torch", "the order of a shuffled epoch is drawn anew")
AGAIN = ("data-repeated", "data", "a plain DataLoader begins its epoch again in the middle of it")
NO_GENERATOR = ("diverged", "rng.torch", "the tutorial's AppState holds no generator")


def exact(script, step, ranks=1):
    return pytest.param(script, ranks, step, None, id=f"{script}-{ranks}")


def fails(script, step, cause, ranks=1):
    mark = pytest.mark.xfail(strict=True, raises=StillFailsError, reason=cause[2])
    return pytest.param(script, ranks, step, cause[:2], marks=mark, id=f"{script}-{ranks}")


@pytest.mark.parametrize(
    ("script", "ranks", "step", "cause"),
    [
        exact("hf_trainer", 9, ranks=2),
        exact("hf_trainer --accumulate 2", 9),
        exact("hf_trainer --noise", 9),
        exact("hf_trainer --save-strategy epoch --epochs 2", 9),
        exact("hf_trainer --load-best", 9),
        exact("hf_trainer --dataloader-workers 2", 9),
        fails("accelerate_state", 7, ORDER, ranks=2),
        fails("accelerate_state --accumulate 2", 7, ORDER),
        fails("accelerate_state --automatic --total-limit 2 --set-iteration", 7, ORDER),
        fails("accelerate_state --stateful", 7, ORDER),
        fails("lightning_fit --accumulate 2", 6, AGAIN),
    ],
)
def test_a_kill_between_two_saves(harness_workbench, script, ranks, step, cause):
    started = choose_launch(parse_command(command(script, ranks)), harness_workbench)
    fault = f"sigkill all ranks at step {step}"
    scenario = Scenario.build({**started.scenario.model_dump(), "faults": (fault,)})
    verdict, directory = run_case(scenario, started.bench)
    said = render(verdict, directory.path)
    shutil.rmtree(directory.path)
    if cause is not None and (verdict.kind, verdict.component) == cause and verdict.root is not None:
        raise StillFailsError(verdict.root.message)
    assert verdict.outcome == "PASS", said
