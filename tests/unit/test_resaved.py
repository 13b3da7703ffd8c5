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
    assert kill_after_unusual_save(run({3: [[1, "never looked at"]]}, saves), 1, USUAL) == fault
