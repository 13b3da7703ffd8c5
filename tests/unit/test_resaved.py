"""What was saved after a resume, held against what is saved there without a crash. Hand-written logs, no process."""

from __future__ import annotations

import json

import pytest

from harness.resaved import kill_after_unusual_save, usual_saves
from harness.store import RunDirectory


@pytest.fixture
def run(tmp_path):
    def write(*attempts):
        """A run directory whose attempts committed these: step → (bytes, digest) of each file."""
        for index, saves in enumerate(attempts):
            folder = RunDirectory(tmp_path).attempt(index)
            folder.mkdir()
            records = [
                {"event": "committed", "step": step, "checkpoint": "c", "files": {f"c/{n}": file for n, file in enumerate(files)}}
                for step, files in saves.items()
            ]
            (folder / "attempt.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return RunDirectory(tmp_path)

    return write


USUAL = {3: (((10, "a"),), True), 6: (((10, "b"),), True), 9: (((10, "c"),), False)}


def test_what_undisturbed_runs_agree_on_is_usual(run):
    saves = [{3: [[10, "a"]], 6: [[10, "b"]], 9: [[10, "c"]]}, {3: [[10, "a"]], 6: [[11, "b"]], 9: [[10, "d"]]}]
    assert usual_saves(list(run(*saves).attempts())) == {3: USUAL[3], 9: USUAL[9]}


@pytest.mark.parametrize(
    ("operations", "fault"),
    [
        ([("rename", "c.tmp", "c")], "sigkill all ranks at step 6 attempt 1"),
        ([("link", "c.tmp", "c")], "sigkill all ranks at step 6 attempt 1"),
        ([("rename", "d.tmp", "d")], "sigkill all ranks at step 6 attempt 1"),  # a directory
        ([("open", "c.tmp", None), ("rename", "c.tmp", "c")], ""),  # written anew
        ([("unlink", "c.tmp", None), ("rename", "c.tmp", "c")], ""),
        ([("rename", "e.tmp", "e")], ""),  # made in this attempt
        ([("rename", "c.tmp", "c.old"), ("rename", "c.old", "f")], "sigkill all ranks at step 6 attempt 1"),
    ],
)
def test_a_leftover_that_is_given_another_name_is_unusual_too(run, operations, fault):
    directory = run({}, {})
    folder = directory.attempt(1)
    files = {"event": "files", "moment": "begin", "files": {"c.tmp": [4, "x"], "d.tmp/shard": [4, "x"]}}
    (folder / "attempt.jsonl").write_text(json.dumps(files) + "\n")
    lines = [{"event": "mark", "rank": 0, "what": "batch", "step": 5}]
    lines += [{"event": "operation", "operation": name, "path": path, "to": to} for name, path, to in operations]
    (folder / "operations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert kill_after_unusual_save(directory, 1, {}) == fault


@pytest.mark.parametrize(
    ("saves", "fault"),
    [
        ({6: [[10, "b"]], 9: [[10, "c"]]}, ""),
        ({9: [[10, "x"]]}, ""),  # its digest is another one in every run
        ({9: [[9, "x"]]}, "sigkill all ranks at step 10 attempt 1"),
        ({3: [[4, "x"]], 6: [[10, "x"]]}, "sigkill all ranks at step 4 attempt 1"),
        ({6: [[10, "x"], [1, "y"]]}, "sigkill all ranks at step 7 attempt 1"),
        ({4: [[10, "x"]]}, ""),  # nothing is known of such a step
    ],
)
def test_the_kill_comes_after_the_first_unusual_save(run, saves, fault):
    directory = run({3: [[1, "never looked at"]]}, saves)
    assert kill_after_unusual_save(directory, 1, USUAL) == fault
    assert kill_after_unusual_save(directory, 1, USUAL, steps=3) == ""  # the job is over by then
