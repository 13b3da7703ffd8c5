"""Where a restart stands, told by what it finds: no process, no torch."""

from __future__ import annotations

import json

import pytest

from harness.probe.injected.resume_probe.golden import Golden, read_earlier


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
        # An optimizer that was not restored is as it was in the beginning; that tells nothing.
        (digests("x", 0), (50, 51), [], (4, "data")),
        (digests("x", 0), (7,), [], (0, "optimizer")),
        # All but the weights was restored.
        (digests(0, 4), (50, 51), ["step-4"], (4, "optimizer")),
        (digests(0, "x"), (50, 51), ["step-4"], (4, "checkpoint")),
        (digests(0, "x"), (10, 11), ["step-4"], (0, "model")),
        # A checkpoint was looked at and passed over.
        (digests(0, 0), (10, 11), ["step-4"], (0, "model+optimizer")),
        # The position was restored, and nothing else.
        (digests(0, 0), (50, 51), ["step-4"], (4, "checkpoint")),
    ],
)
def test_the_surest_sign_tells_the_position(found, samples, opened, position):
    assert golden().position(found, samples, opened) == position


def test_what_an_attempt_that_went_wrong_has_saved_is_known():
    wrong = golden()
    wrong.earlier = [(4, digests(4, 0)), (8, digests("w", "v"))]
    assert wrong.position(digests("w", "v"), (50, 51), []) == (8, "model+optimizer")
    assert wrong.position(digests("w", 0), (50, 51), []) == (8, "model")
    assert wrong.position(digests(4, 0), (50, 51), []) == (4, "model+optimizer")
    assert wrong.position(digests(4, 4), (50, 51), []) == (4, "model+optimizer")


def test_a_name_that_every_save_has_tells_nothing():
    one_name = golden()
    one_name.saves = {4: "ckpt.pt", 8: "ckpt.pt"}
    assert one_name.position(digests("x", "x"), (50, 51), ["ckpt.pt"]) == (4, "data")


def test_earlier_attempts_are_read_up_to_a_line_that_was_cut(tmp_path):
    for index in (0, 1, 2):
        (tmp_path / f"attempt-00{index}").mkdir()
    lines = [
        {"event": "resume", "step": 3, "batch": 4},
        {"event": "state", "moment": "load", "digests": {"model": "a"}},
        {"event": "batch", "batch": 5},
        {"event": "state", "moment": "saving", "digests": {"model": "b"}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "attempt-001" / "rank-0.jsonl").write_text(text + '{"event": "sta')
    (tmp_path / "attempt-002" / "rank-0.jsonl").write_text(text)
    assert read_earlier(str(tmp_path / "attempt-002"), 0) == [(4, {"model": "a"}), (5, {"model": "b"})]
    assert read_earlier(str(tmp_path / "attempt-001"), 0) == []


def test_of_equal_parameters_the_latest_counts():
    still = golden()
    still.states[5] = {**still.states[4], "rng.torch": "r5"}
    assert still.position(digests(4, 4), (), []) == (5, "model+optimizer")


def test_of_several_names_that_were_saved_at_once_the_one_that_was_opened_counts():
    several = golden()
    several.also = {8: ["last.pt"]}
    assert several.saved_as(8, ["last.pt"]) == "last.pt"
    assert several.saved_as(8, ["step-8", "last.pt"]) == several.saved_as(8, []) == "step-8"
    assert several.saved_as(5, ["last.pt"]) is None
    assert several.position(digests(0, 0), (90, 91), ["last.pt"])[0] == 0
