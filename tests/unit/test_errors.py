"""The errors that a user sees: one text for all problems, the exit codes of the contract, and the way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from harness import errors
from harness.errors import CapabilityError, HarnessError, LaunchError, UsageError


def test_exit_codes_are_those_of_the_contract():
    codes = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert codes == {
        "EXIT_PASS": 0,
        "EXIT_FAIL": 1,
        "EXIT_USAGE": 2,
        "EXIT_INCONCLUSIVE": 3,
        "EXIT_HARNESS": 4,
        "EXIT_NOT_REPRODUCED": 5,
        "EXIT_INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError(["x"]), errors.EXIT_USAGE),
        (CapabilityError("a", "b", "c"), errors.EXIT_HARNESS),
        (LaunchError("x"), errors.EXIT_HARNESS),
    ],
)
def test_each_error_is_a_harness_error_with_its_exit_code(error, code):
    assert isinstance(error, HarnessError)
    assert error.exit_code == code


def test_a_single_problem_is_the_whole_text():
    assert str(UsageError(["seed: found 'x', expected a number"])) == "seed: found 'x', expected a number"


def test_several_problems_are_counted_and_numbered_and_say_that_nothing_was_started():
    error = UsageError(["first", "second", "third"])
    assert str(error) == "3 problems; nothing was started:\n  1. first\n  2. second\n  3. third"
    assert error.problems == ("first", "second", "third")


@pytest.mark.parametrize("nothing", [[], (), "", "a text instead of a list of texts"])
def test_usage_error_without_a_list_of_problems_is_a_mistake_of_the_caller(nothing):
    with pytest.raises(ValueError, match="at least one problem"):
        UsageError(nothing)


def test_later_changes_of_the_callers_list_do_not_reach_the_error():
    problems = ["first"]
    error = UsageError(problems)
    problems.append("second")
    assert error.problems == ("first",)


def test_capability_error_says_what_for_why_and_what_to_do():
    text = str(CapabilityError("seccomp returned EPERM", "stop a write half-way", "Run outside the container."))
    assert text == (
        "this machine cannot stop a write half-way: seccomp returned EPERM. Run outside the container. "
        "(`harness doctor` lists what it can do)"
    )


@pytest.mark.parametrize(
    "error", [UsageError(["one"]), UsageError(["one", "two"]), CapabilityError("a", "b", "c"), LaunchError("gone")]
)
@pytest.mark.parametrize("carry", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"])
def test_errors_pass_between_processes_unchanged(error, carry):
    carried = carry(error)
    assert type(carried) is type(error)
    assert str(carried) == str(error)
    assert vars(carried) == vars(error)
