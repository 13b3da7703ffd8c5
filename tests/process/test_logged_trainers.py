"""Trainers that nobody can watch from inside: their losses are read from what they print, or write to a file of theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.scenario import Scenario
from harness.store import RunDirectory, read_attempt

DEADLINE_S = 300
# No torch in it, so that the probe would see nothing at all.
TRAINER = """
import json, os, random, sys
out, words = sys.argv[1], sys.argv[2:]
path = os.path.join(out, "model.json")
weight, step, rng = 5.0, 0, random.Random(3)
def say(text):
    if "file" not in words:
        return print(text)
    with open("train.log", "a") as file:
        file.write(text + "\\n")
def durable(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
if os.path.exists(path) and "anew" not in words:
    with open(path) as file:
        weight, step, (version, numbers) = json.load(file)
    if "no-rng" not in words:
        rng.setstate((version, tuple(numbers), None))
while step < 12:
    x = rng.random()
    loss = (weight * x - x) ** 2
    weight -= 0.1 * (weight * x - x) * x
    step += 1
    if "sparse" not in words or step % 4 == 0:
        say(f"step {step} | loss {loss:.6f}")
    if step % 3 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump([weight, step, rng.getstate()[:2]], file)
        durable(path + ".tmp")
        os.replace(path + ".tmp", path)
        durable(out)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("logged")
    (made / "train.py").write_text(TRAINER)
    return made


@pytest.fixture(scope="module")
def check(folder):
    """Runs `harness check` on the trainer with these words."""

    def run(*words, log="-", options=()):
        trainer = [sys.executable, "train.py", "{ckpt}", *words]
        asked = ["--budget", "20m", "--no-recovery", "--loss-log", log, *options]
        command = [sys.executable, "-m", "harness.cli", "check", *asked, "--", *trainer]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    return run


@pytest.mark.parametrize("words", [(), ("sparse",)])
def test_a_right_one_passes(check, words):
    done = check(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started as it stands: its losses are read from a log" in done.stderr + done.stdout
    assert "100 % covered" in done.stdout


def test_a_log_file_of_its_own(check):
    done = check("file", log="train.log", options=("--power-cut", "none"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_restored_is_felt_in_the_losses(check, folder):
    done = check("no-rng", options=("--power-cut", "none", "--json", "found.json"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1. diverged (none): " in done.stdout
    assert "\n2. " not in done.stdout
    assert json.loads((folder / "found.json").read_text())["summary"]["fail"] > 0
    replay = done.stdout.partition("repeat: harness replay ")[2].splitlines()[0]
    command = [sys.executable, "-m", "harness.cli", "replay", replay]
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert again.stdout.startswith("FAIL diverged")


def test_one_that_never_resumes_is_told_so(check):
    done = check("anew")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the job never resumed" in done.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--loss-regex", "(?P<step>[0-9]+) costs (?P<loss>.*)"), "wrote no line to its standard output or error"),
        (("--loss-regex", "loss"), "has no group loss and step"),
        (("--loss-regex", "("), "expected a regular expression"),
        (("--loss-log", "{ckpt}/log.txt"), "expected a file outside the checkpoint directory"),
        (("--loss-log", "other.log"), "wrote no line to other.log"),
    ],
)
def test_a_log_that_cannot_be_read_is_wrong_usage(check, options, text):
    done = check(options=options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kill_at_a_step_comes_exactly_when_its_line_has_been_written(folder, check_resume):
    workload = {
        "kind": "command",
        "command": (sys.executable, "train.py", "{ckpt}"),
        "directory": str(folder),
        "loss_log": "-",
        "loss_regex": r"step (?P<step>\d+) \| loss (?P<loss>\S+)",
    }
    facts = {"name": "kill-at-a-line", "workload": workload, "world_sizes": (1,), "launch": "cold"}
    verdict = check_resume(Scenario.build({**facts, "faults": ("sigkill all ranks at step 5 by rank 0",)}))
    directory = RunDirectory(Path(verdict.replay).parent)
    first, second = (read_attempt(directory.attempt(index)) for index in (0, 1))
    assert (directory.attempt(0) / "launcher.stdout").read_text().splitlines()[-1].startswith("step 5 ")
    assert [batch.step for batch in first.ranks[0].batches] == [1, 2, 3, 4, 5]
    assert [batch.step for batch in second.ranks[0].batches] == list(range(4, 13))
