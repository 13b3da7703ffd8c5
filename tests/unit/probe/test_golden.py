"""Where a restart stands, told by what it finds: no process, no torch."""

from __future__ import annotations

import pytest

from harness.probe.injected.resume_probe.golden import Golden


def golden():
    states = {done: {"model": f"m{done}", "optimizer": f"o{done}", "rng.torch": f"r{done}"} for done in range(9)}
    steps, samples = {done: done for done in range(9)}, {batch: (10 * batch, 10 * batch + 1) for batch in range(1, 9)}
    return Golden(states, steps, samples, {4: "step-4", 8: "step-8"})


def digests(model, optimizer):
    return {"model": f"m{model}", "optimizer": f"o{optimizer}", "rng.torch": "other"}


@pytest.mark.parametrize(
    ("found", "samples", "opened", "position"),
    [
        (digests(4, 4), (50, 51), ["step-4"], (4, "model+optimizer")),
        (digests(4, 0), (50, 51), ["step-4"], (4, "model")),
        (digests("x", 4), (50, 51), ["step-4"], (4, "optimizer")),
        (digests("x", "x"), (50, 51), ["step-4"], (4, "checkpoint")),
        (digests("x", "x"), (50, 51), [], (4, "data")),
        (digests("x", "x"), (7,), [], (0, "nothing")),
        (digests(0, 0), (10, 11), [], (0, "model+optimizer")),
        # A checkpoint was looked at and passed over.
        (digests(0, 0), (10, 11), ["step-4"], (0, "model+optimizer")),
        # The position was restored, and nothing else.
        (digests(0, 0), (50, 51), ["step-4"], (4, "checkpoint")),
    ],
)
def test_the_surest_sign_tells_the_position(found, samples, opened, position):
    assert golden().position(found, samples, opened) == position


def test_of_equal_parameters_the_latest_counts():
    still = golden()
    still.states[5] = {**still.states[4], "rng.torch": "r5"}
    assert still.position(digests(4, 4), (), []) == (5, "model+optimizer")
