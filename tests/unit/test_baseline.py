"""Two golden runs are compared record by record; what may differ between two equal runs is no difference."""

from __future__ import annotations

import pytest

from harness.baseline import _of_memory, cache_key, first_difference, golden_scenario, noisy_components, not_rising, other_number
from harness.scenario import Command, Reference, Scenario
from harness.store import RankLog


def batch(step, loss="0x1.0p+0", **more):
    return {"event": "batch", "rank": 0, "step": step, "batch": step, "loss": loss, "time_s": step * 1.5, **more}


def report(step):
    return {"event": "save", "moment": "end", "step": step, "checkpoint": f"step-{step}"}


def runs(first, second):
    return first_difference({0: RankLog(0, first)}, {0: RankLog(0, second)})


def test_equal_runs():
    assert runs([batch(1), report(1), batch(2)], [batch(1, time_s=9.0), report(1), batch(2)]) == ""


def test_a_save_in_the_background_may_be_done_at_any_moment():
    assert runs([batch(1), report(1), batch(2), report(2)], [batch(1), batch(2), report(1), report(2)]) == ""


def test_a_save_that_is_missing_or_another_one_is_a_difference():
    assert runs([batch(1), report(1)], [batch(1)]) == "rank 0: 2 records in the first run, 1 in the second"
    assert "checkpoint is 'step-1' in one run, 'step-2' in the other" in runs(
        [batch(1), report(1)], [batch(1), {**report(1), "checkpoint": "step-2"}]
    )


def test_the_first_other_loss_is_named():
    text = runs([batch(1), batch(2)], [batch(1), batch(2, "0x1.1p+0")])
    assert text == "rank 0, batch at step 2: loss is 0x1.0p+0 (1) in one run, 0x1.1p+0 (1.0625) in the other"


def test_other_ranks():
    assert first_difference({0: RankLog(0, [])}, {1: RankLog(1, [])}) == "ranks [0] in the first run, [1] in the second"


def ends(*batches):
    return {rank: RankLog(rank, [{"event": "end", "rank": rank, "batches": number}]) for rank, number in enumerate(batches)}


@pytest.mark.parametrize(
    ("steps", "done", "text"),
    [
        (
            24,
            (12,),
            "steps=24 was said, the uninterrupted run ended after 12 batches; expected the number that it does (steps=12), ",
        ),
        (12, (24, 24), "steps=12 was said, the uninterrupted run ended after 24 batches; "),
        (12, (12, 12), ""),
        (None, (12,), ""),
        (12, (), ""),
    ],
)
def test_a_command_does_as_many_batches_as_was_said(steps, done, text):
    found = other_number(Command(command=("x",), steps=steps), ends(*done))
    assert found.startswith(text)
    assert bool(found) == bool(text)


def test_the_reference_trainer_is_not_doubted():
    assert other_number(Reference(steps=24), ends(12)) == ""


@pytest.fixture
def job(tmp_path):
    """A function that says the key of a command whose script lies in a folder."""
    (tmp_path / "train.py").write_text("import model")

    def key(*words):
        workload = Command(command=("python", "train.py", *words, "{ckpt}"), directory=str(tmp_path), probe=True)
        return cache_key(Scenario(name="job", workload=workload))

    return key


@pytest.mark.parametrize("path", ["model.py", "lib/model.py", "settings.toml"])
def test_another_file_that_the_job_reads_makes_another_baseline(job, tmp_path, path):
    before = job("settings.toml")
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("width = 3")
    made = job("settings.toml")
    (tmp_path / path).write_text("width = 16")
    assert len({before, made, job("settings.toml")}) == 3


@pytest.mark.parametrize(
    "path",
    [
        "runs/check-train.py/cases/0",  # a folder of the harness's own, whose name ends like a module's
        "runs/case/checkpoints/snapshot.py",
        ".venv/lib/other.py",
        "env/lib/python3/site-packages/other.py",
        "__pycache__/train.py",
        "notes.txt",
    ],
)
def test_what_runs_leave_behind_and_what_is_installed_makes_no_other_baseline(job, tmp_path, path):
    (tmp_path / "runs" / "case").mkdir(parents=True)
    (tmp_path / "runs" / "case" / "plan.toml").touch()
    before = job()
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("x = 1")
    assert job() == before


def test_a_script_that_is_not_there_yet_is_no_error(tmp_path):
    workload = Command(command=("python", "no-such.py"), directory=str(tmp_path / "nowhere"))
    assert cache_key(Scenario(name="job", workload=workload))


@pytest.mark.parametrize(("attempt_s", "golden_s"), [(2.0, 6.0), (90.0, 270.0), (200.0, 270.0), (600.0, 600.0)])
def test_an_uninterrupted_run_is_waited_for_longer_since_nothing_is_done_to_it(attempt_s, golden_s):
    scenario = Scenario(workload=Reference(), deadline_s=attempt_s)
    assert golden_scenario(scenario).deadline_s == golden_s


def spoken(*steps):
    places = [{"epoch": 0, "batch_in_epoch": step, "tag": "STEP", "global_loss": "0x1.0p+0"} for step in steps]
    records = [batch(step) | {"batch": n} | place for n, (step, place) in enumerate(zip(steps, places, strict=True), 1)]
    return {0: RankLog(0, records)}


@pytest.mark.parametrize(
    ("steps", "text"), [((1, 1, 2), "after step 1 comes step 1"), ((1, 2, 3, 1), "after step 3 comes step 1")]
)
def test_lines_that_do_not_count_upwards_are_refused_and_never_taken_for_a_defect(steps, text):
    found = not_rising(Command(command=("x",), loss_log="-", loss_regex="y"), spoken(*steps))
    assert text in found
    assert "several ranks" in found
    assert "(?P<epoch>…)" in found


def test_lines_that_count_upwards_are_right_and_nothing_is_asked_of_what_the_probe_sees():
    assert not_rising(Command(command=("x",), loss_log="-", loss_regex="y"), spoken(10, 20)) == ""
    assert not_rising(Command(command=("x",), probe=True), spoken(1, 1)) == ""
    assert not_rising(Reference(), spoken(1, 1)) == ""


def test_what_is_gone_at_the_end_of_one_of_two_runs_is_no_noise():
    def log(**last):
        first = {"averages": {"ema": "a"}, "generators": {"own": "a"}, "attributes": {"trainer.step": "=1", "time": "=1"}}
        records = [{"event": "state", "moment": "next", "digests": {}, **first}]
        records.append({"event": "state", "moment": "end", "digests": {"rng.torch": "a"}, **last})
        return {0: RankLog(0, records)}

    whole = log(averages={"ema": "b"}, generators={"own": "b"}, attributes={"trainer.step": "=2", "time": "=2"})
    assert (
        noisy_components(whole, log(averages={}, generators={}, attributes={"trainer.step": None, "time": None})) == frozenset()
    )
    other = log(averages={"ema": "c"}, generators={"own": "c"}, attributes={"time": "=3"})
    assert noisy_components(whole, other) == {"averages.ema", "generators.own", "attributes.time", "attributes.trainer.step"}


@pytest.mark.parametrize(
    ("exits", "words", "seen"),
    [
        (
            [{"kind": "foreign-death", "signal": "SIGKILL", "max_memory_kib": 2048}],
            "it printed nothing",
            "a process was killed by SIGKILL",
        ),
        ([{"signal": None, "code": 1}], "exitcode  : -9 (pid: 7)  (SIGKILL)", "a process was killed by SIGKILL"),
        (
            [{"signal": None, "code": 1, "max_memory_kib": 2048}],
            "RuntimeError: can't allocate memory",
            "there was not enough memory",
        ),
        (
            [{"signal": None, "code": 1, "max_memory_kib": 2048}],
            "torch.OutOfMemoryError: CUDA out of memory",
            "not enough memory",
        ),
    ],
)
def test_a_job_that_memory_has_no_room_for_is_told_what_to_pass(exits, words, seen):
    said = _of_memory(exits, 8, words)
    assert seen in said
    assert {word for word in ("8 ranks", "--world-size", "GiB") if word not in said} == set()


@pytest.mark.parametrize("words", ["it printed nothing", "ValueError: no data", "a handler of SIGKILL cannot be set"])
def test_other_ends_have_nothing_to_do_with_memory(words):
    # The harness ends the ranks that are left when one of them has failed.
    exits = [{"kind": "exited", "signal": None, "code": 1}, {"kind": "peer-died", "signal": "SIGKILL", "code": None}]
    assert _of_memory(exits, 2, words) == ""
