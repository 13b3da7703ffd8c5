"""The plugin as a user of another repository meets it: collected, passed, failed, distributed, interrupted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.pytest_plugin import _directory_name
from harness.scenario import job

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


@pytest.mark.parametrize(
    "name",
    ["test_a[x-1=2]", "test_a[a b, c/d]", "test_a[é漢🦀]", "test_a[" + "x" * 5000 + "]", "test_a[\\n\\x00]", "C::test_a[..]"],
)
def test_any_test_has_a_name_for_its_folder(name):
    folder = _directory_name(f"tests/test_x.py::{name}")
    assert job(name=folder).name == folder
    assert folder.startswith("test_x-")
    assert folder != _directory_name(f"tests/test_x.py::{name[:-1]}?]")


def test_a_plain_name_is_taken_as_it_is():
    assert _directory_name("tests/test_x.py::test_a[sharded-2]") == "test_x-test_a-sharded-2"


# Without torch, in a second; it writes the event log by itself if it is told to.
FOREIGN = """
import json, os, sys
log = os.path.join(os.environ["HARNESS_EVENT_LOG"], "rank-0.jsonl")
def say(event, **fields):
    with open(log, "a") as file:
        file.write(json.dumps({"event": event, "rank": 0, **fields}) + "\\n")
if "log" in sys.argv:
    say("start", world_size=1, pid=os.getpid())
    say("resume", step=0, checkpoint=None, skipped=[])
    for n in range(1, 13):
        say("batch", batch=n, step=n, epoch=0, batch_in_epoch=n, tag="STEP", reason=None, loss=1.0, global_loss=1.0)
    say("end", step=12, batches=12)
"""
FOREIGN_TEST = """
import sys
from pathlib import Path
from harness import Scenario

def check(check_resume, *words, **settings):
    command = ("{python}", "train.py", *words)
    workload = {"kind": "command", "command": command, "directory": str(Path(__file__).parent), **settings}
    check_resume(Scenario.build({"workload": workload, "world_sizes": (1,), "launch": "cold"}))

def test_more_steps_than_there_are(check_resume):
    check(check_resume, "log", steps=24)

def test_as_many_as_there_are(check_resume):
    check(check_resume, "log", steps=12)

def test_nobody_writes_a_log(check_resume):
    check(check_resume)
"""


def test_a_command_that_does_something_else_than_was_said_is_wrong_usage(pytester):
    pytester.makefile(".py", train=FOREIGN)
    pytester.makepyfile(FOREIGN_TEST)
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=120)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*UsageError: steps=24 was said, the uninterrupted run ended after 12 batches; expected *"])
    result.stdout.fnmatch_lines(["*UsageError: the command ended with exit code 0, but wrote no event log*expected probe=True*"])


TRAINER = """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--out")
path = os.path.join(parser.parse_args().out, "model.pt")
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters())
done = 0
def durable(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
if os.path.exists(path):
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    done = saved["done"]
while done < 24:
    loss = net(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done += 1
    if done % 4 == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "done": done}
        torch.save(state, path + ".tmp")
        durable(path + ".tmp")
        os.replace(path + ".tmp", path)
        durable(os.path.dirname(path))
"""


def test_the_example_of_the_readme_works_as_it_is_copied(pytester, monkeypatch):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^### The same as a test\n.*?^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert example is not None
    tests = pytester.mkdir("tests")
    (tests / "test_copied.py").write_text(example[1])
    (tests / "train.py").write_text(TRAINER)
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=300)
    result.assert_outcomes(passed=1)
