"""The demos are judged: with a mistake planted into the trainer, each says that it failed, and why, and exits with 1.

One process runs all of them, since importing torch takes longer than they do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0
# The mistakes that no `--defect` plants are patched in: (module, name, what it becomes).
UNDIVIDED = ("harness.reference.amp", "loss_scaled_for_accum", "lambda logits, target, steps, loss: loss(logits, target)")
ALWAYS_SYNC = ("harness.reference.amp", "no_sync_context", "lambda model: contextlib.nullcontext()")
UNCHECKED = ("harness.reference.sharded", "check_digest", "lambda *arguments: None")
ANY_NAME = ("harness.reference.manifest", "_check_names", "lambda *arguments: None")
# name → (arguments, patches, the last line, what each of some lines holds)
CASES = {
    "resume no-optimizer": (
        ["resume", "--defect", "no-optimizer"],
        [],
        "RESUME FAILED",
        ["15 of 26 losses differ by more than 0; the first at batch 10 (resumed)"],
    ),
    "resume no-rng": (["resume", "--defect", "no-rng"], [], "RESUME FAILED", ["the first at batch 9 (resumed)"]),
    "end-to-end no-optimizer": (
        ["end-to-end", "--defect", "no-optimizer"],
        [],
        "RESUME FAILED at step 11",
        ["does not hold: learning_rate on rank 0"],  # it is in the optimizer's groups; the losses follow a step later
    ),
    "end-to-end no-rng": (
        ["end-to-end", "--defect", "no-rng"],
        [],
        "RESUME FAILED at step 11",
        ["does not hold: loss on rank 0"],
    ),
    "end-to-end no-scaler": (
        ["end-to-end", "--defect", "no-scaler"],
        [],
        "RESUME FAILED at step 11",
        ["does not hold: scale on rank 0: 2048.0 uninterrupted, 1024.0 resumed"],
    ),
    "amp": (["amp", "--defect", "no-skip"], [], "SKIP PATH FAILED", ["batch 10: weights stay", "batch 10: weights are finite"]),
    "accumulation": (
        ["accumulation"],
        [UNDIVIDED, ALWAYS_SYNC],
        "ACCUMULATION FAILED",
        ["2 micro-batches: losses differ by", "4 micro-batches: exchanges a step"],
    ),
    "sharded": (
        ["sharded"],
        [UNCHECKED, ANY_NAME],
        "SHARDED CHECKPOINT FAILED",
        ["does not hold: altered byte: ", "unsafe shard path: the message was to begin with"],
    ),
}
PROGRAM = """
import contextlib, importlib, io, json, sys
from unittest import mock
from harness.reference.demo.__main__ import main
outcomes = {}
for name, (arguments, patches, *_) in json.loads(sys.argv[1]).items():
    output = io.StringIO()
    with contextlib.ExitStack() as stack:
        for module, attribute, code in patches:
            stack.enter_context(mock.patch.object(importlib.import_module(module), attribute, eval(code)))
        stack.enter_context(contextlib.redirect_stdout(output))
        outcomes[name] = [main(arguments), output.getvalue().splitlines()]
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes():
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_mistake_in_the_trainer_fails_the_demo_that_shows_it(outcomes):
    for name, (_, _, last, held) in CASES.items():
        code, lines = outcomes[name]
        assert code == 1, (name, lines)
        assert lines[-1] == last, name
        assert [text for text in held if not any(text in line for line in lines)] == [], (name, lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resume", "--defect", "no-such-thing"], "no-such-thing: unknown"),
        (["resume", "--out", str(ROOT)], "must be an empty or a new directory"),
    ],
)
def test_wrong_usage(arguments, words):
    command = [sys.executable, "-m", "harness.reference.demo", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
