"""The files of a failure that was made smaller."""

from __future__ import annotations

import ast
import sys

from harness.scenario import Scenario, job
from harness.shrink.write import pytest_file

GROUP = ("diverged", "optimizer")


def case_of(text):
    """The CASE of a generated test, as it will be built there."""
    namespace = {"__file__": "/repository/tests/test_x.py"}
    tree = ast.parse(text)
    kept = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign))]
    exec(compile(ast.Module(kept, []), "test_x.py", "exec"), namespace)
    return Scenario.build(namespace["CASE"])


def test_the_test_of_a_command_has_no_path_of_this_machine():
    workload = {
        "kind": "command",
        "command": (sys.executable, "/somewhere/job/train.py", "--out", "{ckpt}"),
        "directory": "/somewhere/job",
        "probe": True,
    }
    faults = ("sigkill all ranks at step 4 by rank 0",)
    scenario = Scenario.build({"workload": workload, "world_sizes": (1,), "faults": faults, "launch": "cold", "name": "case"})
    text = pytest_file(scenario, GROUP, 17)
    assert "made smaller in 17 runs" in text
    assert "/somewhere" not in text.split('"""')[2]
    built = case_of(text)
    assert built.workload.command == ("{python}", "train.py", "--out", "{ckpt}")
    assert built.workload.directory == "/repository/tests"
    assert (built.faults, built.launch, built.workload.probe) == (faults, "cold", True)


def test_the_test_of_the_reference_trainer_says_only_what_is_unusual():
    scenario = job("sharded", ranks=2, faults="sigkill all ranks at step 3", steps=4, name="case")
    text = pytest_file(scenario, GROUP, 3)
    assert case_of(text) == scenario
    assert "width" not in text
    assert "def test_case(check_resume):" in text


def test_quotes_in_a_command_do_not_end_the_docstring():
    workload = {"kind": "command", "command": ("sh", "-c", 'echo """ \\ {ckpt}')}
    text = pytest_file(Scenario.build({"workload": workload, "world_sizes": (1,), "name": "case"}), GROUP, 1)
    assert case_of(text).workload.command == ("sh", "-c", 'echo """ \\ {ckpt}')
