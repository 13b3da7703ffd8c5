"""Scenarios: everything wrong is found at once, before anything starts, and equal scenarios are equal data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from harness.errors import UsageError
from harness.grammar import parse
from harness.scenario import FORMATS, MAX_RANKS, Command, Reference, Scenario, job


def problems_of(**data):
    with pytest.raises(UsageError) as caught:
        Scenario.build({"workload": {"kind": "reference"}, **data})
    return caught.value.problems


def command(**fields):
    return {"kind": "command", "command": ("python", "train.py"), **fields}


# --- what is accepted


def test_one_call_makes_a_scenario_of_the_reference_trainer():
    scenario = job("sharded", ranks=(4, 2), faults="sigkill rank 1, at step 3", steps=30, precision="fp16", seed=7)
    assert scenario.workload == Reference(format="sharded", steps=30, precision="fp16")
    assert scenario.world_sizes == (4, 2)
    assert scenario.faults == ("sigkill rank 1 at step 3",)
    assert scenario.seed == 7


@pytest.mark.parametrize("faults", ["delete every", ["delete every"], ("delete every",)])
def test_one_sentence_or_several(faults):
    assert job(faults=faults).faults == ("delete every",)


def test_equal_scenarios_are_equal_data_however_they_are_written():
    one = job(faults=["sigkill rank 1 during write *.tmp at 50 %, occurrence 1, attempt 0"], tolerance=0)
    two = job(faults=("sigkill ranks 1 during write *.tmp at 50.0%",), tolerance=0.0)
    assert one == two
    assert one.model_dump_json() == two.model_dump_json()


def test_settings_left_out_are_the_same_data_as_settings_written_out():
    bare = Scenario.build({"workload": {"kind": "reference"}})
    full = Scenario.build(bare.model_dump())
    assert full.model_dump_json() == bare.model_dump_json()


def test_building_again_from_the_data_gives_the_same_scenario():
    for scenario in (job(ranks=4, faults=["nan rank 0 at batch 2"]), Scenario.build({"workload": command(steps=5)})):
        assert Scenario.build(scenario.model_dump()) == scenario
        assert Scenario.build({**scenario.model_dump(), "workload": scenario.workload}) == scenario


def test_scenarios_are_values():
    scenario = job()
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 3
    assert hash(scenario) == hash(job())


def test_the_last_world_size_repeats():
    scenario = job(ranks=(4, 2, 1))
    assert [scenario.world_size(attempt) for attempt in range(5)] == [4, 2, 1, 1, 1]
    assert not scenario.same_world_size
    assert job(ranks=(2, 2)).same_world_size


def test_parsed_faults_are_those_sentences():
    texts = ("delete every", "quota 10 bytes")
    assert job(faults=texts).parsed_faults() == tuple(parse(text) for text in texts)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_has_a_commit_pattern_below_the_checkpoint_directory(format_):
    pattern = Reference(format=format_).commit_pattern
    assert pattern.startswith("step-")
    assert ("/" in pattern) == (format_ != "single")


def test_a_foreign_trainer_has_no_known_commit_pattern():
    assert Command(command=("x",)).commit_pattern is None


def test_arguments_of_the_trainer_name_every_setting():
    words = Reference(reshard=True, defects=("no-rng", "in-place")).arguments(seed=5)
    options = dict(zip(words[::2], words[1::2], strict=False))
    assert options["--seed"] == "5"
    assert options["--out"] == "{ckpt}"
    assert options["--collective-timeout-s"] == "30.0"
    assert options["--learning-rate"] == "0.002"
    assert "--reshard" in words
    assert words[-4:] == ["--defect", "no-rng", "--defect", "in-place"]
    named = {"--" + name.replace("_", "-") for name in Reference.model_fields} - {"--kind", "--defects"}
    assert named <= set(words)
    assert all(isinstance(word, str) for word in words)


def test_without_reshard_the_option_is_absent():
    assert "--reshard" not in Reference().arguments(seed=0)


def test_the_words_are_exported_at_the_top():
    assert set(harness.__all__) <= set(vars(harness))
    assert harness.Scenario is Scenario


# --- what is refused


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"sead": 1}, "sead: extra inputs are not permitted; found 1; did you mean seed?"),
        ({"zzz": 1}, "zzz: extra inputs are not permitted; found 1"),
        ({"seed": "1"}, "seed: input should be a valid integer; found '1'"),
        ({"seed": True}, "seed: input should be a valid integer; found True"),
        ({"seed": -1}, "seed: input should be greater than or equal to 0; found -1"),
        ({"tolerance": float("nan")}, "tolerance: input should be a finite number; found nan"),
        ({"tolerance": 1.0}, "tolerance: input should be less than 1; found 1.0"),
        ({"deadline_s": float("inf")}, "deadline_s: input should be a finite number; found inf"),
        ({"deadline_s": 0}, "deadline_s: input should be greater than 0; found 0"),
        ({"deadline_s": 1e28}, "deadline_s: input should be less than or equal to 604800; found 1e+28"),
        ({"max_attempts": 0}, "max_attempts: input should be greater than or equal to 1; found 0"),
        ({"launch": "hot"}, "launch: input should be 'warm', 'cold' or 'torchrun'; found 'hot'"),
        ({"expect": "fails"}, "expect: input should be 'resumes', 'refuses' or 'resumes-or-refuses'; found 'fails'"),
        ({"name": "\udc80"}, "name: expected text that can be written as UTF-8 and holds no NUL; found '\\udc80'"),
        ({"name": "a\0"}, "name: expected text that can be written as UTF-8 and holds no NUL; found 'a\\x00'"),
        ({"world_sizes": ()}, "world_sizes: tuple should have at least 1 item after validation, not 0; found ()"),
        ({"world_sizes": (0,)}, f"world_sizes: 0 is not a number of ranks; expected 1 to {MAX_RANKS}"),
        ({"world_sizes": (65,)}, f"world_sizes: 65 is not a number of ranks; expected 1 to {MAX_RANKS}"),
        ({"world_sizes": (2.5,)}, "world_sizes.0: input should be a valid integer; found 2.5"),
        ({"world_sizes": (5,)}, "world_sizes: 5 ranks cannot share a global batch of 12; expected a divisor of it"),
        ({"workload": 3}, "workload: input should be a valid dictionary or object to extract fields from; found 3"),
        ({"workload": {}}, "workload: unable to extract tag using discriminator 'kind'; found {}"),
        ({"workload": {"kind": "command"}}, "workload.command: field required"),
        ({"workload": command(command=("a", 1))}, "workload.command.1: input should be a valid string; found 1"),
        (
            {"workload": command(command=("a", "\0"))},
            "workload.command.1: expected text that can be written as UTF-8 and holds no NUL; found '\\x00'",
        ),
        (
            {"workload": command(resume_command=())},
            "workload.resume_command: tuple should have at least 1 item after validation, not 0; found ()",
        ),
        ({"workload": {"kind": "reference", "steps": 0}}, "workload.steps: input should be greater than or equal to 1; found 0"),
        (
            {"workload": {"kind": "reference", "learning_rate": float("inf")}},
            "workload.learning_rate: input should be a finite number; found inf",
        ),
        (
            {"workload": {"kind": "reference", "precison": "fp16"}},
            "workload.precison: extra inputs are not permitted; found 'fp16'; did you mean precision?",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_found_and_expected(data, problem):
    assert problems_of(**data) == (problem,)


@pytest.mark.parametrize("faults", ["sigkill rank 0 at step 1", None, 3, ("sigkill rank 0 at step 1", 3), {"a": 1}, ((),)])
def test_faults_that_are_no_list_of_sentences_are_never_ignored(faults):
    assert any(problem.startswith("faults") for problem in problems_of(faults=faults))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            {"faults": ("sigkill rank 2 at step 1",)},
            "fault 'sigkill rank 2 at step 1': there is no rank 2; attempt 0 has 2 ranks, so expected 0 to 1",
        ),
        (
            {"faults": ("sigkill rank 0 at step 1 by rank 5",)},
            "fault 'sigkill rank 0 at step 1 by rank 5': there is no rank 5; attempt 0 has 2 ranks, so expected 0 to 1",
        ),
        (
            {"world_sizes": (4, 1), "faults": ("EIO rank 1 on fsync x attempt 1",)},
            "fault 'EIO rank 1 on fsync x attempt 1': there is no rank 1; attempt 1 has 1 rank, so expected 0 to 0",
        ),
        (
            {"faults": ("nan rank 0 at batch 2 micro-batch 3",), "workload": {"kind": "reference", "accumulate": 2}},
            "fault 'nan rank 0 at batch 2 micro-batch 3': there is no micro-batch 3; a batch has 2 (accumulate), "
            "so expected 1 to 2",
        ),
        (
            {"faults": ("delete every attempt 3",)},
            "fault 'delete every attempt 3': attempt 3 never happens; max_attempts is 3, so expected 0 to 2",
        ),
        (
            {"faults": ("sigkill rank 0 at step 25",)},
            "fault 'sigkill rank 0 at step 25': the job ends at 24, so this never happens; expected 1 to 24",
        ),
        (
            {"faults": ("nan rank 0 at batch 25",)},
            "fault 'nan rank 0 at batch 25': the job ends at 24, so this never happens; expected 1 to 24",
        ),
        (
            {"faults": ("overflow rank 0 at batch 3 times 999999999",)},
            "fault 'overflow rank 0 at batch 3 times 999999999': the job ends at 24, so batches 25 to 1000000001 never happen; "
            "expected times 1 to 22",
        ),
        (
            {"workload": command(steps=9), "faults": ("nan rank 0 at batch 9 times 2",)},
            "fault 'nan rank 0 at batch 9 times 2': the job ends at 9, so batches 10 to 10 never happen; expected times 1 to 1",
        ),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(data, problem):
    assert problems_of(**data) == (problem,)


def test_a_numeric_fault_may_name_a_rank_of_any_attempt():
    assert job(ranks=(2, 4), faults="nan rank 3 at batch 2").faults == ("nan rank 3 at batch 2",)


def test_a_foreign_trainer_may_have_any_number_of_steps_and_ranks():
    scenario = Scenario.build({"workload": command(), "world_sizes": (7,), "faults": ("sigkill rank 6 at step 9999",)})
    assert scenario.workload == Command(command=("python", "train.py"))


def test_all_problems_come_in_one_error():
    problems = problems_of(
        seed="x",
        sead=1,
        launch="hot",
        world_sizes=(2, 99, 5),
        faults=("bogus", "sigkill rank 7 at step 1", "quota 1 bytes attempt 9", "sigkill rank 0 at step 99"),
        workload={"kind": "reference", "steps": 30, "width": 1},
    )
    expected = [
        "fault 'bogus'",
        "seed",
        "sead",
        "launch",
        "workload.width",
        "world_sizes: 99 is not",
        "world_sizes: 5 ranks",
        "there is no rank 7",
        "attempt 9 never happens",
        "the job ends at 30",
    ]
    assert [word for word in expected if not any(word in problem for problem in problems)] == []
    assert len(problems) == len(expected)


@pytest.mark.parametrize("ranks", [2.5, None, "ab", True, [], [[2]]])
def test_ranks_that_are_no_numbers_are_refused(ranks):
    with pytest.raises(UsageError, match="world_sizes"):
        job(ranks=ranks)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
scenario_keys = st.sampled_from(sorted(Scenario.model_fields)) | st.text(max_size=4)
workload_keys = st.sampled_from(sorted({*Reference.model_fields, *Command.model_fields}))
tables = st.dictionaries(workload_keys, anything, max_size=3)
workloads = st.one_of(
    anything,
    tables,
    tables.map(lambda table: {**table, "kind": "reference"}),
    tables.map(lambda table: {**table, "kind": "command"}),
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(scenario_keys, anything, max_size=4), workloads)
def test_any_data_makes_a_scenario_or_a_usage_error(data, workload):
    try:
        scenario = Scenario.build({**data, "workload": workload})
    except UsageError:
        return
    assert Scenario.build(scenario.model_dump()) == scenario


@pytest.mark.parametrize("defects", ["no-rng", ["no-rng"], ("no-rng",)])
def test_defects_are_taken_in_any_of_the_usual_forms(defects):
    assert job(defects=defects).workload.defects == ("no-rng",)


def test_a_model_with_batch_norm_keeps_its_number_of_ranks():
    with pytest.raises(UsageError, match="BatchNorm"):
        job(model="mlp", ranks=(4, 2))


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "baselines", "../../x", "a/b", "/", "x" * 201, "x" * 5000, "é" * 101, "a\nb", "a\tb", "\x1b[1m", "\u2028"],
)
def test_a_name_that_is_no_folder_below_the_runs_is_one_problem(name):
    (problem,) = problems_of(name=name)
    assert problem.startswith("name: expected a name for a folder: 1 to 200 printable characters")
    assert len(problem) < 400, "a long value is cut"


@pytest.mark.parametrize("name", ["x" * 200, "test_x[a=1, b]", "é漢 🦀", "-", "...", "baselines2"])
def test_any_other_name_is_taken(name):
    assert job(name=name).name == name


INTEGERS = [name for name, field in Reference.model_fields.items() if field.annotation is int]


@pytest.mark.parametrize("value", [2**63, 10**5000], ids=["64 bits", "many digits"])
@pytest.mark.parametrize("field", INTEGERS)
def test_a_number_that_no_trainer_could_take_is_a_problem_before_anything_starts(field, value):
    problems = problems_of(workload={"kind": "reference", field: value})
    assert [problem.split(": ")[0] for problem in problems] == [f"workload.{field}"]


def test_numbers_of_too_many_digits_are_a_problem_everywhere():
    assert problems_of(world_sizes=(10**5000,))[0].startswith("world_sizes: a number of thousands of digits is not a number of")
    assert problems_of(seed=10**5000)[0].endswith("; found a number of thousands of digits")


def test_an_epoch_has_as_many_samples_as_a_rank_can_make():
    (problem,) = problems_of(workload={"kind": "reference", "batches_per_epoch": 100_000, "global_batch": 4096})
    assert "409600000 in an epoch; expected at most 10000000" in problem


@pytest.mark.parametrize("data", [[], None, 3, "x", [("workload", 1)]])
def test_data_that_is_no_mapping_is_refused(data):
    with pytest.raises(UsageError, match=r"scenario: found .*; expected a mapping"):
        Scenario.build(data)


def test_bf16_over_a_change_of_ranks_needs_a_tolerance_above_its_rounding():
    with pytest.raises(UsageError, match=r"bf16 on 4 and 2 ranks .* found tolerance=0\.0001; expected tolerance=1e-3 or more"):
        job("sharded", ranks=(4, 2), precision="bf16")
    for change in ({"tolerance": 1e-3}, {"ranks": (2, 2)}, {"precision": "fp16"}):
        assert job("sharded", **{"ranks": (4, 2), "precision": "bf16", **change})


@pytest.mark.parametrize(
    ("settings", "hint"),
    [({"rank": 2}, "ranks"), ({"tolerence": 0.1}, "tolerance"), ({"precison": "fp16"}, "precision"), ({"fault": "x"}, "faults")],
)
def test_a_misspelt_setting_of_a_job_is_answered_with_the_right_one(settings, hint):
    with pytest.raises(UsageError, match=f"extra inputs are not permitted; found .*; did you mean {hint}\\?$"):
        job(**settings)


def test_a_misspelt_field_of_a_command_is_answered_with_the_right_one():
    (problem,) = problems_of(workload=command(prob=True))
    assert problem == "workload.prob: extra inputs are not permitted; found True; did you mean probe?"


def test_an_unknown_defect_is_not_said_to_have_been_an_option():
    with pytest.raises(UsageError, match=r"^defect no-optimiser: unknown; did you mean no-optimizer\? Expected one of "):
        job(defects="no-optimiser")
    with pytest.raises(UsageError, match=r"^defect in-place: exists in the format single only, found dcp$"):
        job("dcp", defects="in-place")
