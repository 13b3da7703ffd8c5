"""`harness chaos` and `harness shrink` with what cannot be: one clear text, no traceback, nothing lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.plan import make_plan, write_plan
from harness.scenario import Scenario, job

TIMEOUT_S = 900


def harness(*arguments):
    command = [sys.executable, "-m", "harness.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_everything_that_is_wrong_is_said_at_once_and_nothing_starts(tmp_path):
    wrong = [
        "--shard",
        "3/2",
        "--faults",
        "kills,teeth",
        "--set",
        "precison=fp32",
        "--budget",
        "soon",
        "--seed",
        "-1",
        "--jobs",
        "0",
    ]
    done = harness("chaos", "--reference", "sharded", "--out", tmp_path / "runs", *wrong)
    assert done.returncode == 2
    for text in ("--shard 3/2", "unknown 'teeth'", "did you mean precision?", "--budget soon", "--seed -1", "--jobs 0"):
        assert text in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["chaos"], "found neither of --reference FORMAT and a command"),
        (["chaos", "--", "python", "train.py"], "the command has no {ckpt}"),
        (["chaos", "--continue", "."], "no night below"),
        (["chaos", "--continue", ".", "--budget", "9h", "--", "x"], "--budget, the command would change nothing"),
        (["shrink", "/no/such/plan.toml"], "cannot read the replay file"),
    ],
)
def test_wrong_usage(tmp_path, arguments, text):
    done = harness(arguments[0], "--out", tmp_path / "runs", *arguments[1:])
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr


def test_a_corrupt_replay_file_is_refused_by_shrink(tmp_path):
    file = tmp_path / "plan.toml"
    write_plan(make_plan(job("single", ranks=1, faults="sigkill rank 0 at step 3")), file)
    file.write_text(file.read_text().replace("sigkill rank 0", "explode rank 9"))
    done = harness("shrink", file, "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert "unknown fault word 'explode'" in done.stderr
    assert not (tmp_path / "runs").exists()


def trainer(*words):
    program = "import sys, os; open(sys.argv[1] + '/x', 'w').write('1'); print('step 1 loss 0.5')"
    return ["--launch", "cold", "--no-canary", "--loss-log", "-", "--", sys.executable, "-S", "-c", program, "{ckpt}"]


def test_a_budget_too_short_for_one_case(tmp_path):
    done = harness("chaos", "--budget", "0.1s", "--out", tmp_path, *trainer())
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the budget of 0.1 s was used up before" in done.stdout
    assert "expected a larger --budget" in done.stdout


def test_a_seed_that_draws_nothing(tmp_path):
    done = harness("chaos", "--budget", "14m", "--seed", "7", "--faults", "world-size", "--out", tmp_path, *trainer())
    assert done.returncode == 3, done.stdout + done.stderr
    assert "seed 7 drew nothing: no fault of world-size can happen to this job" in done.stdout


def test_a_case_that_does_not_fail_cannot_be_made_smaller(tmp_path):
    program = "import sys; print('step 1 loss 0.5')"
    workload = {
        "kind": "command",
        "command": (sys.executable, "-S", "-c", program, "{ckpt}"),
        "loss_log": "-",
        "loss_regex": r"step (?P<step>\d+) loss (?P<loss>\S+)",
    }
    scenario = Scenario.build({"workload": workload, "world_sizes": (1,), "launch": "cold"})
    write_plan(make_plan(scenario), tmp_path / "plan.toml")
    done = harness("shrink", tmp_path / "plan.toml", "--out", tmp_path / "runs")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "does not fail here: PASS; there is nothing to make smaller" in done.stdout
