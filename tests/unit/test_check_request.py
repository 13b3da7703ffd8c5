"""From the words of `harness check` to what is asked for, and every problem of them at once."""

from __future__ import annotations

import sys

import pytest

from harness.case import check_environment
from harness.check_request import parse_request
from harness.errors import UsageError
from harness.scenario import Scenario

NOTHING = {
    "format": None,
    "world_size": None,
    "steps": None,
    "save": None,
    "crash_points": None,
    "power_cut": "model",
    "filesystem": "ext4",
    "recovery": True,
    "interleavings": True,
    "damage": False,
    "errors": False,
    "defect": (),
    "seed": "0",
    "jobs": None,
    "launch": "auto",
    "budget": None,
    "resume_command": None,
    "world_sizes": None,
    "tolerance": None,
    "python": None,
    "command": (),
}
OWN_PYTHON = ("{python}", "train.py", "{ckpt}")
TRAIN = ("torchrun", "--nproc-per-node", "{world_size}", "train.py", "{ckpt}")


def asked(**options):
    return parse_request({**NOTHING, **options})


def problems_of(**options):
    with pytest.raises(UsageError) as caught:
        asked(**options)
    return caught.value.problems


def test_a_command_has_a_budget_and_the_save_that_there_is():
    request = asked(command=TRAIN)
    assert (request.budget_s, request.save, request.limit, request.world_sizes) == (300.0, None, None, None)
    request = asked(format="single")
    assert (request.budget_s, request.save, request.limit) == (None, 2, None)


def test_what_a_command_may_be_given():
    options = {"resume_command": "python 'my train.py' --resume {ckpt}", "tolerance": "1e-3", "python": sys.executable}
    own = ("{python}", "-m", "torch.distributed.run", "--nproc-per-node", "{world_size}", "train.py", "{ckpt}")
    request = asked(command=own, world_sizes="1, 4", **options)
    assert request.scenario.workload.resume_command == ("python", "my train.py", "--resume", "{ckpt}")
    assert request.scenario.workload.python == sys.executable
    assert (request.scenario.tolerance, request.world_sizes) == (1e-3, (1, 4))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"command": TRAIN, "tolerance": "much"},
            "--tolerance much: expected a difference of losses from 0 to below 1, such as 1e-4",
        ),
        (
            {"command": TRAIN, "tolerance": "nan"},
            "--tolerance nan: expected a difference of losses from 0 to below 1, such as 1e-4",
        ),
        (
            {"command": TRAIN, "resume_command": "a 'b"},
            '--resume-command "a \'b": No closing quotation; expected words as a shell reads them',
        ),
        ({"command": TRAIN, "resume_command": " "}, "--resume-command is empty; expected a command"),
        (
            {"command": TRAIN, "resume_command": "python {chkpt}"},
            "--resume-command has no {ckpt}; found {chkpt}; expected it where the trainer takes its checkpoint directory: "
            "--out {ckpt}",
        ),
        ({"command": TRAIN, "world_sizes": "1,x"}, "--world-sizes x: expected numbers of ranks such as 1,4"),
        ({"format": "single", "seed": "99999999999"}, "--seed 99999999999: expected a whole number, at most 2147483648"),
        (
            {"command": OWN_PYTHON, "python": "/nonexist"},
            "--python '/nonexist': does not exist or cannot be executed; expected an interpreter or its path",
        ),
        (
            {"command": TRAIN, "python": sys.executable},
            f"--python {sys.executable}: the command has no {{python}}, so it would run in another interpreter; expected "
            "{python} where the command says which one it is: -- {python} train.py … or -- {python} -m torch.distributed.run …",
        ),
        (
            {"command": TRAIN, "resume_command": "python -I train.py {ckpt}"},
            "--resume-command: -I keeps out whoever watches the restarted trainer through PYTHONPATH; expected it without that "
            "option, or --loss-log FILE",
        ),
        (
            {"command": OWN_PYTHON, "python": ""},
            "--python '': does not exist or cannot be executed; expected an interpreter or its path",
        ),
        ({"format": "single", "python": "/usr/bin/python3"}, "--python is for a command; expected -- COMMAND … with it"),
    ],
)
def test_what_is_wrong_is_said(options, problem):
    assert list(problems_of(**options)) == [problem]


@pytest.mark.parametrize(("word", "found"), [("myckpt", ""), ("{chkpt}", "; found {chkpt}"), ("{a: 1}", "")])
def test_a_command_must_take_a_checkpoint_directory(word, found):
    (problem,) = problems_of(command=("python", "train.py", word))
    assert problem.startswith(f"the command has no {{ckpt}}{found}; expected it where")


def test_world_sizes_need_a_command_that_can_be_told():
    (problem,) = problems_of(command=("python", "train.py", "{ckpt}"), world_sizes="4")
    assert "the command has no {world_size}" in problem


def test_everything_that_is_wrong_is_said_at_once():
    found = problems_of(command=TRAIN, tolerance="2", save="x", budget="soon")
    assert len(found) == 3


@pytest.mark.parametrize("command", [("true",), ("{python}", "train.py")])
def test_an_interpreter_of_a_plan_that_does_not_exist_is_refused_whether_it_is_used_or_not(command):
    scenario = Scenario.build({"workload": {"kind": "command", "command": command, "python": "/nonexist"}, "world_sizes": (1,)})
    with pytest.raises(UsageError) as caught:
        check_environment(scenario)
    assert caught.value.problems == (
        "python '/nonexist' does not exist or cannot be executed; expected an interpreter or its path",
    )


def test_a_command_line_that_is_one_word_is_told_from_a_program_that_is_not_there():
    def problem(*command):
        with pytest.raises(UsageError) as caught:
            check_environment(Scenario.build({"workload": {"kind": "command", "command": command}, "world_sizes": (1,)}))
        return caught.value.problems[0]

    assert problem("true --out {ckpt}").endswith("expected a program or its path, and its words without quotes around them all")
    assert problem("no-such-program --out").endswith("expected a program or its path")


def test_what_is_run_otherwise_is_read_as_words():
    said = {"control_command": "{python} train.py --no-save", "resume_python": sys.executable, "python": sys.executable}
    workload = asked(command=OWN_PYTHON, **said).scenario.workload
    assert workload.control_command == ("{python}", "train.py", "--no-save")
    assert (workload.python, workload.resume_python) == (sys.executable, sys.executable)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"command": OWN_PYTHON, "resume_python": "/no/such/python"}, "--resume-python '/no/such/python': does not exist"),
        ({"format": "single", "control_command": "x"}, "--control-command is for a command"),
        ({"command": OWN_PYTHON, "control_command": "'"}, "--control-command"),
    ],
)
def test_what_is_wrong_with_it_is_said(said, problem):
    assert any(text.startswith(problem) for text in problems_of(**said))
