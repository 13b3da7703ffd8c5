"""The run directory: names, records, and reading back what a killed or damaged run has left behind."""

from __future__ import annotations

import json
import math
import os
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.plan import make_plan
from harness.scenario import job
from harness.store import (
    AttemptRun,
    Batch,
    RankLog,
    RecordWriter,
    Run,
    RunDirectory,
    parse_float,
    read_attempt,
    read_baseline,
    read_rank_logs,
    read_records,
    read_run,
)


def batch(number=1, **fields):
    done = {"event": "batch", "rank": 0, "time_s": 1.0, "batch": number, "step": number, "epoch": 0, "batch_in_epoch": number}
    seen = {"tag": "STEP", "reason": None, "scale": None, "samples": [3, 1], "parameters_finite": True}
    numbers = {"loss": 1.5, "global_loss": 1.25, "learning_rate": 0.1, "grad_norm": 1.0}
    return {**done, **seen, **{name: value.hex() for name, value in numbers.items()}, **fields}


def lines(*records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "rank-0.jsonl"


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "runs" / "case", make_plan(job(faults="sigkill rank 0 at step 3")))


@pytest.fixture
def attempt(directory):
    path = directory.attempt(0)
    path.mkdir()
    return path


# --- writing


def test_a_record_is_one_line_in_one_write_and_later_writers_append(log, monkeypatch):
    writes = []
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real_write(fd, data))
    for number in (1, 2):
        writer = RecordWriter(log)
        writer.write("mark", n=number, text="line\nend é \udc80")
        writer.close()
        writer.close()
    assert len(writes) == 2
    assert all(data.count(b"\n") == 1 and data.endswith(b"\n") for data in writes)
    records, problems = read_records(log)
    assert problems == []
    assert [(r["event"], r["n"], r["text"]) for r in records] == [
        ("mark", 1, "line\nend é \udc80"),
        ("mark", 2, "line\nend é \udc80"),
    ]
    assert all(isinstance(r["time_s"], float) for r in records)


def test_the_log_is_not_inherited_by_the_training_processes(log, monkeypatch):
    opened = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(real_open(*arguments)) or opened[-1])
    writer = RecordWriter(log)
    assert [os.get_inheritable(fd) for fd in opened] == [False]
    writer.close()


# --- reading records


def test_a_log_that_is_not_there_is_empty(tmp_path):
    assert read_records(tmp_path / "absent.jsonl") == ([], [])


def test_a_log_that_ends_without_a_line_end_is_read_to_its_end(log):
    log.write_bytes(lines({"event": "start"}, {"event": "stop"})[:-1])
    assert read_records(log) == ([{"event": "start"}, {"event": "stop"}], [])


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b'{"event": "batch", "los', 'rank-0.jsonl line 2 is not JSON: b\'{"event": "batch", "los\''),
        (b'{"event": "a"}{"event": "b"}', "rank-0.jsonl line 2 is not JSON"),
        (b'{"event": "a", {"event": "b"} "x": 1}', "rank-0.jsonl line 2 is not JSON"),
        (b"\x00\x00\x00\x00", "rank-0.jsonl line 2 is not JSON"),
        (b"\xff\xfe{}", "rank-0.jsonl line 2 is"),
        (b"\x80\x04\x95", "rank-0.jsonl line 2 is not JSON"),
        (b"[" * 200_000, "rank-0.jsonl line 2 is not JSON"),
        (b'{"event": "a", "n": ' + b"9" * 5000 + b"}", "rank-0.jsonl line 2 is not JSON"),
        (b"17", "rank-0.jsonl line 2 is no event record: b'17'"),
        (b"null", "rank-0.jsonl line 2 is no event record: b'null'"),
        (b'["event"]', "rank-0.jsonl line 2 is no event record"),
        (b"{}", "rank-0.jsonl line 2 is no event record"),
        (b'{"event": 3}', "rank-0.jsonl line 2 is no event record"),
        (b" ", "rank-0.jsonl line 2 is not JSON"),
        (b'{"event": "resume"}', "rank-0.jsonl line 2 has no usable 'step' in its 'resume' record"),
        (b'{"event": "resume", "step": "4"}', "rank-0.jsonl line 2 has no usable 'step' in its 'resume' record"),
        (b'{"event": "resume", "step": true}', "rank-0.jsonl line 2 has no usable 'step' in its 'resume' record"),
        *(
            (
                b'{"event": "state", "moment": "next", "digests": {}, "%s": %s}' % (name, value),
                f"rank-0.jsonl line 2 has no usable '{name.decode()}' in its 'state' record",
            )
            for name, value in (
                (b"averages", b"[]"),
                (b"generators", b'{"a": 1}'),
                (b"attributes", b'"x"'),
                (b"values", b'{"a": true}'),
                (b"parts", b'{"model": "x"}'),
                (b"rounded", b'{"bfloat16": {"model": 1}}'),
                (b"micro", b"-1"),
            )
        ),
        (b'{"event": "launched", "world_size": null}', "rank-0.jsonl line 2 has no usable 'world_size' in its 'launched' record"),
        (b'{"event": "exited", "code": 0}', "rank-0.jsonl line 2 has no usable 'rank' in its 'exited' record"),
        (b'{"event": "files", "files": {}}', "rank-0.jsonl line 2 has no usable 'moment' in its 'files' record"),
        (b'{"event": "files", "moment": "end", "files": []}', "rank-0.jsonl line 2 has no usable 'files' in its 'files' record"),
        (b'{"event": "files", "moment": "end", "files": {"a": [1]}}', "rank-0.jsonl line 2 has no usable 'files' in its"),
        (b'{"event": "files", "moment": "end", "files": {"a": ["1", "x"]}}', "rank-0.jsonl line 2 has no usable 'files' in its"),
    ],
)
def test_a_bad_line_is_named_and_the_lines_around_it_are_read(log, bad, problem):
    log.write_bytes(lines({"event": "start"}) + bad + b"\n\n" + lines({"event": "stop"}))
    records, problems = read_records(log)
    assert [record["event"] for record in records] == ["start", "stop"]
    assert len(problems) == 1
    assert problems[0].startswith(problem)
    assert len(problems[0]) < 200


@settings(deadline=None, max_examples=200)
@given(cut=st.integers(0, 10_000), junk=st.binary(max_size=30), at=st.integers(0, 10_000))
@example(cut=0, junk=b"", at=0)
def test_whatever_happened_to_a_log_whole_lines_before_it_are_read(tmp_path_factory, cut, junk, at):
    whole = lines({"event": "start"}, *(batch(n) for n in range(1, 6)), {"event": "stop"})
    at %= len(whole) + 1
    path = tmp_path_factory.getbasetemp() / "damaged-rank-0.jsonl"
    path.write_bytes(whole[:at] + junk + whole[at + cut % 200 :])
    records, problems = read_records(path)
    untouched = whole[:at].count(b"\n")
    assert len(records) >= untouched
    assert all(isinstance(text, str) for text in problems)
    rank = RankLog(0, records, problems)
    assert len(rank.batches) + len(rank.problems) <= len(records) + len(problems) + 1
    assert rank.ended in (True, False)
    assert rank.resumed_from is None


# --- numbers


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 1e-320, 1.7976931348623157e308, 0.1, math.inf, -math.inf])
def test_a_logged_number_reads_back_to_the_same_bits(value):
    for logged in (value.hex(), value):
        assert parse_float(logged).hex() == value.hex()


@pytest.mark.parametrize(
    "text",
    ["nan", math.nan, "", "2.5", "10", "abc", "infinity", "0x", "0x1p99999", 10**400, None, True, [], {}, b"0x1p0", ["0x"]],
)
def test_what_is_no_logged_number_is_nan(text):
    assert math.isnan(parse_float(text))


def test_a_plain_json_number_is_a_number():
    assert parse_float(3) == 3.0
    assert parse_float(2.5) == 2.5


# --- batches


def test_a_batch_has_its_fields():
    read = Batch.of(batch(7, tag="SKIP", reason="non_finite_loss", loss="nan", scale=(2.0).hex(), parameters_finite=False))
    assert math.isnan(read.loss)
    assert (read.batch, read.step, read.epoch, read.batch_in_epoch, read.tag) == (7, 7, 0, 7, "SKIP")
    assert (read.reason, read.scale, read.global_loss) == ("non_finite_loss", 2.0, 1.25)
    assert read.samples == (3, 1)
    assert read.parameters_finite is False


def test_a_batch_without_the_fields_that_not_every_trainer_has():
    record = batch()
    for name in ("reason", "scale", "samples", "parameters_finite"):
        del record[name]
    read = Batch.of(record)
    assert (read.reason, read.scale, read.samples, read.parameters_finite) == (None, None, (), True)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": None},
        {"step": "x"},
        {"epoch": math.inf},
        {"batch_in_epoch": math.nan},
        {"samples": None},
        {"samples": ["x"]},
        {"samples": [[]]},
    ],
)
def test_a_malformed_batch_is_left_out_and_named(log, change):
    log.write_bytes(lines(batch(1), batch(2, **change), batch(3)))
    rank = RankLog(0, *read_records(log))
    assert [read.batch for read in rank.batches] == [1, 3]
    assert len(rank.problems) == 1
    assert rank.problems[0].startswith("rank 0: malformed batch record {'event': 'batch'")


def test_a_batch_without_a_needed_field_is_left_out_and_named_once():
    record = batch()
    del record["global_loss"]
    rank = RankLog(3, [record])
    assert rank.batches == []
    assert rank.batches == []
    assert len(rank.problems) == 1


# --- what a rank said


def test_a_rank_log_is_asked_by_event_and_fields():
    save = {"event": "save", "moment": "begin", "step": 4}
    rank = RankLog(0, [{"event": "resume", "step": 4}, save, {**save, "moment": "end"}, batch(5), {"event": "end"}])
    assert rank.of("save", moment="end", step=4) == [{**save, "moment": "end"}]
    assert rank.of("save", moment="failed") == []
    assert rank.of("save", checkpoint=None) == [save, {**save, "moment": "end"}]
    assert rank.resumed_from == 4
    assert rank.ended


def test_a_rank_that_never_got_to_its_load_resumed_from_nothing():
    rank = RankLog(0, [{"event": "start"}])
    assert rank.resumed_from is None
    assert not rank.ended


# --- an attempt


def test_an_attempt_is_read_as_it_was_recorded(attempt):
    (attempt / "attempt.jsonl").write_bytes(
        lines(
            {"event": "launched", "world_size": 2},
            {"event": "files", "moment": "begin", "files": {}},
            {"event": "exited", "rank": 0, "code": 1},
            {"event": "exited", "rank": 1, "code": None},
            {"event": "files", "moment": "end", "files": {"step-4.pt": [10, "ab"]}},
        )
    )
    operation = {"event": "operation", "n": 1, "operation": "write", "path": "a"}
    (attempt / "operations.jsonl").write_bytes(lines(operation))
    for rank in (10, 2, 0):
        (attempt / f"rank-{rank}.jsonl").write_bytes(lines(batch(rank=rank)))
    (attempt / "rank-1.stderr").write_bytes(b"boom \xff\n")
    (attempt / "launcher.stderr").write_bytes(b"launcher\n")
    read = read_attempt(attempt)
    assert read.index == 0
    assert list(read.ranks) == [0, 2, 10]
    assert read.world_size == 2
    assert read.exits[1]["code"] is None
    assert read.of("exited", code=1) == [read.exits[0]]
    assert read.files("begin") == {}
    assert read.files("end") == {"step-4.pt": (10, "ab")}
    assert read.operations == [operation]
    assert read.stderr(1) == "boom \ufffd\n"
    assert read.stderr(0) == "launcher\n"
    assert read.problems == []


def test_an_attempt_of_which_nothing_was_recorded(attempt):
    (attempt / "rank-0.jsonl").touch()
    read = read_attempt(attempt)
    assert (read.world_size, read.exits, read.files("end"), read.stderr(0), read.problems) == (1, {}, None, "", [])


def test_damaged_logs_of_the_supervisor_are_problems_and_not_exceptions(attempt):
    (attempt / "attempt.jsonl").write_bytes(
        b'{"event": "launched"}\n{"event": "exited"}\n{"event": "files", "moment": "end"}\n{"ev'
    )
    (attempt / "operations.jsonl").write_bytes(b"\x00")
    read = read_attempt(attempt)
    assert (read.world_size, read.exits, read.files("end")) == (0, {}, None)
    assert len(read.problems) == 5


def test_files_that_are_no_rank_logs_are_left_alone(tmp_path):
    for name in ("rank-0.jsonl", "rank-x.jsonl", "rank-².jsonl", "rank-.jsonl", "rank-1.stdout", "attempt.jsonl"):
        (tmp_path / name).write_bytes(lines({"event": "start"}))
    assert list(read_rank_logs(tmp_path)) == [0]


# --- a run


def test_a_run_directory_is_made_once_and_holds_its_plan_first(directory):
    assert directory.checkpoints.is_dir()
    assert read_run(directory.path).plan == make_plan(job(faults="sigkill rank 0 at step 3"))
    with pytest.raises(FileExistsError):
        RunDirectory.create(directory.path, make_plan(job()))


def test_names_in_a_run_directory(directory):
    names = [directory.plan_file, directory.checkpoints, directory.golden, directory.verdict_file, directory.attempt(12)]
    assert [path.name for path in names] == ["plan.toml", "checkpoints", "golden", "verdict.json", "attempt-012"]


def test_attempts_are_those_that_were_launched_in_order(directory):
    assert list(directory.attempts()) == []
    for index in (1, 0, 3):
        directory.attempt(index).mkdir()
    assert [path.name for path in directory.attempts()] == ["attempt-000", "attempt-001"]


def test_a_run_tells_every_problem_of_its_logs_before_anyone_has_read_the_batches(directory, attempt):
    (attempt / "attempt.jsonl").write_bytes(b"x\n")
    (attempt / "rank-0.jsonl").write_bytes(b"y\n" + lines(batch(loss=1.0), batch(step=None)))
    run = read_run(directory.path)
    assert [text.split(" is ")[0].split(" {")[0] for text in run.problems] == [
        "attempt.jsonl line 1",
        "rank-0.jsonl line 1",
        "rank 0: malformed batch record",
    ]
    assert run.problems == run.problems


def test_a_run_without_problems():
    empty = AttemptRun(0, None, {0: RankLog(0, [batch()])}, [], [], [])
    assert Run(None, make_plan(job()), [empty]).problems == []


def test_a_run_without_a_plan_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "plan.toml"))):
        read_run(tmp_path)


# --- the baseline


def test_a_baseline_reads_back(tmp_path):
    (tmp_path / "rank-0.jsonl").write_bytes(lines(batch()))
    (tmp_path / "baseline.json").write_text('{"world_size": 1, "unstable": "step 3 differs"}')
    baseline = read_baseline(tmp_path)
    assert (baseline.world_size, list(baseline.ranks), baseline.unstable) == (1, [0], "step 3 differs")


def test_a_baseline_that_was_not_finished_is_not_found(tmp_path):
    with pytest.raises(UsageError, match="cannot read the baseline"):
        read_baseline(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"world_size": "x", "unstable": ""}', b'{"world_size": Infinity}']
)
def test_a_damaged_baseline_is_a_usage_error_that_names_the_file(tmp_path, content):
    (tmp_path / "baseline.json").write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "baseline.json"))):
        read_baseline(tmp_path)


def global_losses(folder, *losses, world_size=None, **more):
    """What is read as the mean of one batch of ranks that know only their own loss."""
    for rank, loss in enumerate(losses):
        start = {"event": "start", "rank": rank, "time_s": 0.0, "world_size": world_size or len(losses)}
        record = batch(loss=loss, **{"global_loss": None, "rank": rank, **more})
        (folder / f"rank-{rank}.jsonl").write_bytes(lines(start, record))
    return [log.of("batch")[0]["global_loss"] for log in read_rank_logs(folder).values()]


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        (("0x1.0p+0", "0x1.0p+1"), (1.5).hex()),
        (("0x1.0p+0", "nan"), "nan"),
        (("0x1.0p+0", "inf"), "inf"),
        (("-inf", "inf"), "nan"),
        (((1e308).hex(), (1.5e308).hex()), (1.25e308).hex()),
        (("0x1.0p+0", "no number"), "nan"),
    ],
)
def test_where_ranks_know_their_own_loss_only_the_mean_is_worked_out(tmp_path, losses, mean):
    assert global_losses(tmp_path, *losses) == [mean, mean]


def test_no_mean_is_worked_out_of_some_ranks_only_or_where_the_trainer_has_said_one(tmp_path):
    assert global_losses(tmp_path, "0x1.0p+0", "0x1.0p+1", world_size=3) == [None, None]
    said = (2.5).hex()
    assert global_losses(tmp_path, "0x1.0p+0", "0x1.0p+1", global_loss=said) == [said, said]


def test_a_batch_without_a_number_is_no_error_when_losses_are_filled_in(tmp_path):
    assert global_losses(tmp_path, "0x1.0p+0", "0x1.0p+1", batch=[1]) == [(1.5).hex()] * 2
