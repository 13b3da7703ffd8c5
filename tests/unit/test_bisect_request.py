"""What is wrong with a search that is asked for, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bisect_request import parse
from harness.environments import Environments, in_order, with_interpreter
from harness.errors import UsageError
from harness.scenario import Scenario, job


def asked(ends=None, package=None, versions=None, repository=None, environments=None):
    problems = []
    return parse(ends, package, versions, repository, environments, problems), problems


def test_without_a_search_nothing_is_asked_for():
    assert asked() == (None, [])


def test_commits_are_what_two_names_are():
    request, problems = asked(("v1", "main"), repository=Path("here"))
    assert not problems
    assert (request.ends, request.package, request.repository) == (("v1", "main"), "", Path("here"))


@pytest.mark.parametrize(
    ("ends", "package", "versions", "expected"),
    [
        (("torch==2.12.0", "torch==2.13.0"), None, None, (("2.12.0", "2.13.0"), "torch", ())),
        (("2.12.0", "2.13.0"), "torch", None, (("2.12.0", "2.13.0"), "torch", ())),
        (None, "torch", "2.11, 2.12,2.13", (("2.11", "2.13"), "torch", ("2.11", "2.12", "2.13"))),
        (("1.0", "1.10"), "a", "1.9,1.2,1.11,1.2", (("1.0", "1.10"), "a", ("1.0", "1.2", "1.9", "1.10"))),
    ],
)
def test_versions(ends, package, versions, expected):
    request, problems = asked(ends, package, versions)
    assert not problems
    assert (request.ends, request.package, request.versions) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"package": "torch"}, ["--package is for --bisect"]),
        ({"repository": Path(), "environments": Path()}, ["--repo is for --bisect", "--environments is for --bisect"]),
        ({"ends": ("a", "b"), "versions": "1"}, ["--versions is for a package", "--versions: found '1'; expected at least two"]),
        ({"ends": ("torch==1", "numpy==2")}, ["expected two versions of one package"]),
        ({"ends": ("torch==1", "main")}, ["expected two versions of one package, or two commits"]),
        ({"ends": ("torch==1", "torch==2"), "package": "numpy"}, ["expected two versions of one package"]),
        ({"ends": ("2", "1"), "package": "a"}, ["2 is not earlier than 1"]),
        ({"ends": ("main", "v1"), "package": "a"}, ["'main' is no version"]),
        ({"ends": ("1", "2"), "package": "a", "repository": Path()}, ["--repo is for commits"]),
        ({"ends": ("1", "2"), "environments": Path()}, ["--environments is for versions"]),
        ({"ends": ("1", "2"), "package": "../a"}, ["--package: found '../a'"]),
    ],
)
def test_everything_that_is_wrong(arguments, expected):
    request, problems = asked(**arguments)
    assert request is None
    assert len(problems) == len(expected), problems
    for found, text in zip(problems, expected, strict=True):
        assert text in found


def test_versions_are_ordered_as_versions():
    assert in_order(["2.10", "2.9", "2.9.1", "3.0", "2.0"], "2.9", "2.10") == ("2.9", "2.9.1", "2.10")


def test_the_middle_version_is_tried_first():
    line = Environments(Path(), "python", "a", ("1", "2", "3", "4", "5"))
    assert line.between({"1"}, "5")[0] == "3"
    assert line.between({"1", "3"}, "5") == ["4"]
    assert line.between({"4"}, "5") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("{python}", "t.py", "{ckpt}"), ("{python}", "t.py", "{ckpt}")),
        (("/opt/v/bin/python3", "t.py"), ("{python}", "t.py")),
        (
            ("torchrun", "--nproc-per-node", "2", "t.py"),
            ("{python}", "-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py"),
        ),
        (("bash", "run.sh"), ("bash", "run.sh")),
    ],
)
def test_a_command_runs_under_the_interpreter_of_a_version(words, expected):
    scenario = Scenario.build({"workload": {"kind": "command", "command": words}})
    changed = with_interpreter(scenario, Path("/e/bin/python"))
    assert (changed.workload.command, changed.workload.python, changed.launch) == (expected, "/e/bin/python", "cold")


def test_the_reference_trainer_has_no_other_environment():
    with pytest.raises(UsageError, match="expected a command"):
        with_interpreter(job(), Path("/e/bin/python"))
