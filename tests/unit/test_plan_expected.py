"""What a replay file says it shows, and the line of what is wrong in one."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.plan import SCHEMA, Expected, make_plan, read_plan, write_expected, write_plan
from harness.plan_lines import line_of
from harness.scenario import job

VALID = f'schema = "{SCHEMA}"\n[scenario]\nseed = 3\n[workload]\nkind = "reference"\n'
LOST = Expected("diverged", "rng.torch")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "plan.toml"


def test_what_is_expected_is_written_and_read(file):
    plan = make_plan(job(faults="sigkill rank 0 at step 3"), expected=LOST)
    write_plan(plan, file)
    assert read_plan(file) == plan
    assert read_plan(file).expected == LOST


def test_a_file_without_it_is_read_as_before(file):
    file.write_text(VALID)
    assert read_plan(file).expected is None


def test_it_is_added_to_a_stored_plan_and_everything_else_stays(file):
    plan = make_plan(job(faults="sigkill rank 0 at step 3"))
    write_plan(plan, file)
    before = file.read_text()
    write_expected(file, LOST)
    assert file.read_text().startswith(before.rstrip("\n"))
    assert read_plan(file) == make_plan(plan.scenario, plan.versions, LOST)
    assert [path.name for path in file.parent.iterdir()] == ["plan.toml"]


@pytest.mark.parametrize(
    ("kind", "component", "shown"),
    [
        ("diverged", "rng.torch", True),
        ("diverged", "rng.python", False),
        ("diverged", "rng", False),
        ("state-lost", "rng.torch", False),
        (None, "none", False),
    ],
)
def test_a_part_is_meant_exactly(kind, component, shown):
    assert LOST.is_shown_by(kind, component) is shown


def test_a_whole_component_means_any_part_of_it():
    assert Expected("diverged", "rng").is_shown_by("diverged", "rng.python")
    assert not Expected("diverged", "rng").is_shown_by("diverged", "optimizer")


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        ("", ["line 6: expected.kind: missing; expected one of", "line 6: expected.component: missing; expected one of"]),
        ('kind = "divergd"\ncomponent = "rng"', ["line 7: expected.kind: found 'divergd'; did you mean diverged?"]),
        (
            'kind = "diverged"\ncomponent = "optimiser"',
            ["line 8: expected.component: found 'optimiser'; did you mean optimizer?"],
        ),
        ('kind = 3\ncomponent = "rng.torch"', ["line 7: expected.kind: found 3; expected one of"]),
        ('kind = "hang"\ncomponent = "none"\nstep = 3', ["line 9: expected.step: unknown entry"]),
    ],
)
def test_what_is_wrong_with_it_is_said_with_its_line(file, table, problems):
    file.write_text(f"{VALID}[expected]\n{table}\n")
    with pytest.raises(UsageError) as caught:
        read_plan(file)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert found.startswith(f"{file}: {expected}")


def test_a_file_of_another_version_says_whose_it_is(file):
    file.write_text(VALID.replace("plan/1", "plan/7") + '[versions]\nharness = "9.9"\n')
    with pytest.raises(UsageError, match=r"line 1: unknown schema 'harness.plan/7'.*written by harness 9.9, this is"):
        read_plan(file)


LINES = """\
schema = "harness.plan/1"
[scenario]
seed = 3
faults = [
  "sigkill rank 9 at step 3",
  "explode",
]
[workload] # which trains
"kind" = "reference"
steps = "many"
[versions]
"""


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("unknown schema None; expected 'harness.plan/1'", 1),
        ("seed: input should be", 3),
        ("faults.0: input should be", 4),
        ("fault 'sigkill rank 9 at step 3': there is no rank 9", 5),
        ("fault 'explode': unknown fault word 'explode'", 6),
        ("workload.kind: input should be", 9),
        ("workload.steps: input should be", 10),
        ("workload.directory: missing", 8),
        ("versions: found 'x'; expected a table", 11),
        ("unknown table 'sceanrio'", None),
        ("attempt 0 has 2 disks (quota 1 bytes, quota 2 bytes)", None),
    ],
)
def test_the_line_of_a_problem(problem, line):
    assert line_of(problem, LINES) == line
