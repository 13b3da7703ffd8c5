"""Plans: which attempt gets which faults, and a replay file that people may edit and break."""

from __future__ import annotations

import os
import re
import shlex
import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import plan as plan_module
from harness.errors import UsageError
from harness.grammar import parse
from harness.plan import SCHEMA, AttemptPlan, Plan, make_plan, narrate, read_plan, replay_line, versions, write_plan
from harness.scenario import Scenario, job

SENTENCES = (
    "sigkill rank 1 during write rank1.bin.tmp at 50% occurrence 2",
    "sigkill all ranks at step 7 by rank 0 attempt 1",
    "EIO rank 0 on fsync ** always",
    "short-write rank 0 on write *.tmp at last byte attempt 1",
    "quota 300000 bytes",
    "full-disk 9 bytes attempt 1",
    "truncate newest/**/*.bin to byte 0",
    "flip older at 33.3% bit 7 attempt 2",
    "delete every attempt 2",
    "nan rank 1 at batch 5 times 2",
    "spike all ranks at batch 9",
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "plan.toml"


@pytest.fixture(scope="module")
def reused_file(tmp_path_factory):
    return tmp_path_factory.mktemp("plan") / "plan.toml"


def command(*words, **fields):
    return Scenario.build({"workload": {"kind": "command", "command": words, **fields}, "world_sizes": (3, 1)})


# --- from scenario to plan


def test_each_fault_goes_to_its_attempt_in_the_order_given():
    plan = make_plan(job(ranks=(2, 4, 1), faults=SENTENCES))
    assert [attempt.index for attempt in plan.attempts] == [0, 1, 2]
    assert [attempt.world_size for attempt in plan.attempts] == [2, 4, 1]
    assert [tuple(map(str, attempt.faults)) for attempt in plan.attempts] == [
        (SENTENCES[4], SENTENCES[0], SENTENCES[2]),
        (SENTENCES[6], SENTENCES[5], SENTENCES[1], SENTENCES[3]),
        (SENTENCES[7], SENTENCES[8]),
    ]
    assert tuple(map(str, plan.numeric)) == SENTENCES[9:]


def test_an_attempt_names_its_kinds_of_fault():
    attempt = make_plan(job(faults=SENTENCES)).attempts[1]
    assert attempt == AttemptPlan(
        index=1,
        world_size=2,
        live=(parse(SENTENCES[1]), parse(SENTENCES[3])),
        disk=parse(SENTENCES[5]),
        damage=(parse(SENTENCES[6]),),
    )


def test_every_fault_is_planned_exactly_once():
    plan = make_plan(job(faults=SENTENCES))
    planned = [str(fault) for attempt in plan.attempts for fault in attempt.faults] + list(map(str, plan.numeric))
    assert sorted(planned) == sorted(SENTENCES)


def test_attempts_after_the_last_fault_are_plain_restarts():
    plan = make_plan(job(faults="sigkill rank 0 at step 1", max_attempts=5))
    assert len(plan.attempts) == 5
    assert [bool(attempt.faults) for attempt in plan.attempts] == [True, False, False, False, False]


def test_two_disks_in_one_attempt_are_refused_for_all_such_attempts_at_once():
    faults = [
        "quota 1 bytes",
        "full-disk 2 bytes",
        "quota 3 bytes attempt 1",
        "quota 4 bytes attempt 1",
        "quota 5 bytes attempt 2",
    ]
    with pytest.raises(UsageError) as caught:
        job(faults=faults)
    assert caught.value.problems == (
        "attempt 0 has 2 disks (quota 1 bytes, full-disk 2 bytes); expected at most one",
        "attempt 1 has 2 disks (quota 3 bytes attempt 1, quota 4 bytes attempt 1); expected at most one",
    )


def test_planning_is_pure():
    assert make_plan(job(faults=SENTENCES)) == make_plan(job(faults=list(SENTENCES)))


# --- the replay file


@pytest.mark.parametrize(
    "scenario",
    [
        job(),
        job("dcp", ranks=(4, 2), faults=SENTENCES, seed=2**31, tolerance=1e-300, reshard=True, defects=("no-rng",)),
        command("python", "train.py", "--out", "{ckpt}"),
        command("python", "-c", "import x\nprint('[scenario]\\n')\r\n# \x1b[1m\x7f\x85\u2028", resume_command=("x",), steps=5),
        job(name="quotes \"\"\" and ''' and \\ and é漢🦀", faults="delete newest/\x1b\x7f'\""),
    ],
    ids=["bare", "full", "command", "control-characters", "quotes"],
)
def test_what_is_written_reads_back_equal(file, scenario):
    plan = make_plan(scenario)
    write_plan(plan, file)
    assert read_plan(file) == plan
    assert read_plan(file).scenario.model_dump_json() == scenario.model_dump_json()


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
printable = st.characters(exclude_categories=["C", "Z"], exclude_characters="/")
names = st.text(printable, min_size=1, max_size=20).filter(lambda name: name not in (".", "..") and name.isprintable())
scenarios = st.one_of(
    st.builds(
        lambda name, words, seed, tolerance, attempts: Scenario.build(
            {
                "name": name,
                "workload": {"kind": "command", "command": words},
                "seed": seed,
                "tolerance": tolerance,
                "max_attempts": attempts,
            }
        ),
        names,
        st.lists(texts, min_size=1, max_size=4).map(tuple),
        st.integers(0, 2**31),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 100),
    ),
    st.builds(
        lambda faults, ranks, deadline: job(
            faults=[f for f in faults if f not in SENTENCES[5:6]], ranks=ranks, deadline_s=deadline
        ),
        st.lists(st.sampled_from(SENTENCES), unique=True),
        st.sampled_from([2, (2, 4), (4, 2, 12)]),
        st.floats(1e-3, 604_800),
    ),
)


@settings(deadline=None, max_examples=150)
@given(scenario=scenarios)
def test_any_plan_reads_back_equal(reused_file, scenario):
    write_plan(make_plan(scenario), reused_file)
    assert read_plan(reused_file).scenario == scenario


def test_the_file_says_in_words_what_happens_and_which_versions_were_used(file):
    write_plan(make_plan(job(faults=SENTENCES)), file)
    text = file.read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("harness replay plan.toml" in line for line in comments)
    assert any(
        line.endswith("attempt 2 on 2 ranks: flip older at 33.3% bit 7 attempt 2; delete every attempt 2") for line in comments
    )
    data = tomllib.loads(text)
    assert data["schema"] == SCHEMA
    assert set(data["versions"]) == {"harness", "python", "torch"}
    assert data["scenario"]["faults"] == list(SENTENCES)


def test_a_plan_that_was_read_keeps_the_versions_that_it_was_made_with(file):
    write_plan(make_plan(job(), recorded={"torch": "1.0", "other": "x"}), file)
    plan = read_plan(file)
    assert plan.versions == {"torch": "1.0", "other": "x"}
    write_plan(plan, file)
    assert read_plan(file) == plan


def test_a_folder_means_the_plan_in_it(tmp_path):
    plan = make_plan(job())
    write_plan(plan, tmp_path / "plan.toml")
    assert read_plan(tmp_path) == plan


def test_versions_say_so_where_something_is_not_installed(monkeypatch):
    def absent(name):
        raise plan_module.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(plan_module.metadata, "version", absent)
    plan_module._installed.cache_clear()
    try:
        assert versions()["torch"] == versions()["harness"] == "not installed"
    finally:
        plan_module._installed.cache_clear()


# --- hand-edited and broken files

VALID = f'schema = "{SCHEMA}"\n[scenario]\nseed = 3\n[workload]\nkind = "reference"\n'


def test_a_short_file_written_by_hand_is_enough(file):
    file.write_text(VALID)
    assert read_plan(file) == make_plan(job(seed=3), recorded={})


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
def test_line_ends_of_another_system_are_read(file, newline):
    file.write_text(VALID, newline=newline)
    assert read_plan(file).scenario.seed == 3


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["unknown schema None; expected 'harness.plan/1'", "table [scenario] is missing", "table [workload] is missing"]),
        (VALID.replace("plan/1", "plan/2"), ["unknown schema 'harness.plan/2'; expected 'harness.plan/1'"]),
        (
            VALID.replace("plan/1", "plan/2").replace("seed = 3", "seed = -3") + "steps = 0\n[sceanrio]\n",
            [
                "unknown schema 'harness.plan/2'",
                "unknown table 'sceanrio'",
                "workload.steps: input should",
                "seed: input should be",
            ],
        ),
        (VALID + 'directory = "a\\u0000b"', ["workload.directory: extra inputs"]),
        (VALID.replace("seed = 3", 'name = "../../x"'), ["name: expected a name for a folder"]),
        (VALID + "[sceanrio]\n", ["unknown table 'sceanrio'"]),
        (VALID + "[versions]\ntorch = 2.13", ["versions: found {'torch': 2.13}; expected a table of strings"]),
        ("versions = 'x'\n" + VALID, ["versions: found 'x'; expected a table of strings"]),
        (
            "workload = 1\nscenario = [1]\n" + VALID.splitlines()[0],
            ["table [scenario] is missing", "table [workload] is missing"],
        ),
        (VALID + "[scenario.workload]\nkind='reference'", ["unknown entry 'workload' in [scenario]"]),
        (VALID.replace("seed = 3", 'seed = "3"'), ["seed: input should be a valid integer; found '3'"]),
        (
            VALID.replace("seed = 3", "seed = 2020-01-01"),
            ["seed: input should be a valid integer; found datetime.date(2020, 1, 1)"],
        ),
        (VALID.replace("seed = 3", "deadline_s = inf"), ["deadline_s: input should be a finite number; found inf"]),
        (VALID.replace("seed = 3", 'faults = "delete every"'), ["faults: input should be a valid tuple; found 'delete every'"]),
        (
            VALID.replace("seed = 3", "faults = [['delete every']]"),
            ["faults.0: input should be a valid string; found ['delete every']"],
        ),
        (VALID.replace("seed = 3", 'faults = ["quota 1 bytes", "quota 2 bytes"]'), ["attempt 0 has 2 disks"]),
        (
            VALID.replace("seed = 3", 'sead = 3\nfaults = ["bogus", "sigkill rank 9 at step 1"]') + "stepz = 4\n",
            ["fault 'bogus'", "workload.stepz: extra inputs", "sead: extra inputs", "there is no rank 9"],
        ),
    ],
)
def test_every_problem_of_a_hand_edited_file_is_named_with_the_file(file, text, problems):
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_plan(file)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert found.startswith(f"{file}: ")
        assert expected in found


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xfe",
        b"\x80\x04\x95binary",
        VALID.encode("utf-16"),
        b"\xef\xbb\xbf" + VALID.encode(),
        VALID.encode() + b"x = " + b"[" * 100_000,
        VALID.encode() + b"x = " + b"9" * 5000,
        VALID.encode() + b"x = 2020-13-45T99:99:99",
        VALID.encode() + b"seed = 3\nkind = 'reference'",
        VALID.encode()[:-4],
    ],
    ids=["binary", "pickle", "utf-16", "bom", "deep", "long-number", "no-date", "twice", "cut"],
)
def test_a_file_that_is_no_toml_is_a_usage_error_that_names_it(file, content):
    file.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(str(file))) as caught:
        read_plan(file)
    assert "expected a plan.toml that a run has written" in str(caught.value)


def test_a_file_that_is_not_there_is_a_usage_error_that_names_it(tmp_path):
    for path in (tmp_path / "absent.toml", tmp_path, tmp_path / "absent" / "plan.toml"):
        with pytest.raises(UsageError, match=f"cannot read the replay file {re.escape(str(path))}"):
            read_plan(path)


@pytest.fixture(scope="module")
def valid_bytes(tmp_path_factory):
    file = tmp_path_factory.mktemp("valid") / "plan.toml"
    write_plan(make_plan(job("sharded", ranks=(4, 2), faults=SENTENCES)), file)
    return file.read_bytes()


@settings(deadline=None, max_examples=400)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 4000),
            st.integers(0, 6),
            st.binary(max_size=4) | st.sampled_from([b"[", b'"', b"\n", b"=", b"#", b"0"]),
        ),
        min_size=1,
        max_size=4,
    )
)
@example(edits=[(0, 4000, b"")])
def test_a_mutated_file_gives_a_valid_plan_or_a_usage_error_and_nothing_else(reused_file, valid_bytes, edits):
    content = valid_bytes
    for offset, cut, put in edits:
        offset %= len(content) + 1
        content = content[:offset] + put + content[offset + cut :]
    reused_file.write_bytes(content)
    try:
        plan = read_plan(reused_file)
    except UsageError:
        return
    assert isinstance(plan, Plan)
    assert plan == make_plan(plan.scenario, plan.versions)
    write_plan(plan, reused_file)
    assert read_plan(reused_file) == plan


def test_a_file_cut_anywhere_gives_a_valid_plan_or_a_usage_error(reused_file, valid_bytes):
    understood = 0
    for size in range(0, len(valid_bytes), 7):
        reused_file.write_bytes(valid_bytes[:size])
        try:
            read_plan(reused_file)
        except UsageError:
            continue
        understood += 1
    # A cut inside the settings of the workload can leave valid TOML; everything before that cannot.
    assert understood < len(valid_bytes) / 7 / 3


# --- in words


def test_the_story_names_work_attempts_and_expectation():
    assert narrate(make_plan(job(faults="sigkill rank 0 at step 3"))) == [
        "the reference trainer, single checkpoints every 4 batches, 24 batches; warm launch, seed 0",
        "attempt 0 on 2 ranks: sigkill rank 0 at step 3",
        "attempt 1 on 2 ranks: no fault",
        "then it must be seen that the job resumes",
    ]


def test_the_story_tells_every_change_of_the_number_of_ranks():
    story = narrate(make_plan(job(ranks=(2, 4, 2), faults="nan rank 0 at batch 3")))
    assert story[1:5] == [
        "in every attempt, and in the uninterrupted run: nan rank 0 at batch 3",
        "attempt 0 on 2 ranks: no fault",
        "attempt 1 on 4 ranks: no fault",
        "attempt 2 on 2 ranks: no fault",
    ]


def test_the_story_of_a_command_is_its_words():
    assert narrate(make_plan(command("python", "train.py")))[0] == "python train.py; warm launch, seed 0"


def test_a_pipe_is_no_replay_file_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "plan.toml")
    with pytest.raises(UsageError, match="no regular file"):
        read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize("name", ["plan.toml", "my runs/it's <b> $(id) ü.toml", "runs/a;b&c.toml"])
def test_the_line_that_repeats_a_case_is_one_argument_for_a_shell(name):
    assert shlex.split(replay_line(name)) == ["harness", "replay", name]
