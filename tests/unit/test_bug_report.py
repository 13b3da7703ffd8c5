"""The replay file that is given away."""

from __future__ import annotations

from harness.bug_report import portable
from harness.plan import Expected, make_plan
from harness.redaction import Redactor
from harness.scenario import Scenario

OWN = "/home/alice/project"
COMMAND = ("python", "train.py", "--out", "{ckpt}")


def given(**more):
    workload = {"kind": "command", "command": COMMAND, "directory": OWN, "probe": True, **more}
    plan = make_plan(Scenario.build({"workload": workload, "world_sizes": (1,)}))
    redact = Redactor({OWN: "TRAINER", "/home/alice": "HOME"}, {"alice": "USER", "max": "USER"})
    moved, notes = portable(plan, None, False, redact, Expected("diverged", "rng"))
    return moved.scenario.workload, notes


def test_nothing_of_the_command_says_whose_it_is():
    other = ("/home/alice/venv/bin/python", "/home/alice/other.py", "--out", "{ckpt}")
    paths = {"python": "/home/alice/v/bin/python", "resume_python": "/home/alice/w/bin/python"}
    workload, notes = given(control_command=other, resume_command=other, **paths)
    assert "alice" not in workload.model_dump_json()
    assert any("resume_python" in note for note in notes)
    assert any("HOME/other.py" in note for note in notes)


def test_a_word_that_was_taken_for_a_name_is_said():
    workload, notes = given(command=(*COMMAND, "--max-steps", "8"))
    assert "--USER-steps" in workload.command
    assert any("were replaced (--USER-steps)" in note for note in notes)
    assert not any("were replaced" in note for note in given()[1])
