from __future__ import annotations

from dataclasses import replace

import pytest
from histories import STEPS, attempt, baseline, name_of, only, run_of, scenario

from harness.oracle.leftover import leftover

LAST, PART, WHOLE = name_of(STEPS), f"{name_of(STEPS)}.tmp", (20_000, "f" * 64)


def listing(run, index):
    return run.attempts[index].of("files", moment="end")[-1]["files"]


def renamed(path, *, size=5_000, kept=False, damaged=False):
    """The last save is cut: its temporary file has so many bytes, and the restart has given it its name."""
    hit = {"event": "damaged", "fault": "truncate newest attempt 1", "path": LAST, "checkpoint": LAST, "unchanged": False}
    second = attempt(1, 21, STEPS, path=path, resumed=20, ended=True, supervisor=(hit,) if damaged else ())
    run = run_of(attempt(0, 1, STEPS, path=path), second, case=scenario())
    listing(run, 0).pop(LAST, None)
    listing(run, 0)[PART] = [size, "a" * 64]
    listing(run, 1)[LAST] = [size, "a" * 64]
    if kept:
        listing(run, 1)[PART] = [size, "a" * 64]
    return run


def golden():
    return replace(baseline(), files={LAST: WHOLE})


@pytest.mark.parametrize("size", [0, 5_000, 19_000])
def test_half_a_file_under_its_final_name_is_found(tmp_path, size):
    found = only(leftover(renamed(tmp_path, size=size), golden()), "corrupt-accepted")
    assert (found.file, found.attempt, found.component) == (LAST, 1, "checkpoint-files")
    assert f"as {PART}: {size} of 20000 bytes" in found.message


@pytest.mark.parametrize("size", [19_900, 20_000, 20_100])
def test_a_whole_one_that_was_only_not_renamed_may_be(tmp_path, size):
    assert leftover(renamed(tmp_path, size=size), golden()) == []


def test_what_is_equal_by_chance_damaged_or_unknown_tells_nothing(tmp_path):
    assert leftover(renamed(tmp_path, kept=True), golden()) == []
    assert leftover(renamed(tmp_path, damaged=True), golden()) == []
    assert leftover(renamed(tmp_path), baseline()) == []
    anew = renamed(tmp_path)
    listing(anew, 1)[LAST] = [5_000, "b" * 64]
    assert leftover(anew, golden()) == []
    listing(anew, 1).clear()
    assert leftover(anew, golden()) == []


def test_what_is_no_checkpoint_is_no_part_of_one(tmp_path):
    """A log that a restart begins anew is as empty as some temporary file was."""
    run = renamed(tmp_path, size=0)
    listing(run, 1)["train.log"] = listing(run, 1).pop(LAST)
    assert leftover(run, replace(golden(), files={LAST: WHOLE, "train.log": WHOLE})) == []


def test_what_stood_there_before_is_no_part(tmp_path):
    run = renamed(tmp_path)
    listing(run, 0)[LAST] = [5_000, "a" * 64]
    assert leftover(run, golden()) == []
