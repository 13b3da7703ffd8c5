"""Which batches a trainer's own log tells of. No process: what it writes is handed over as bytes."""

from __future__ import annotations

import json
import re

import pytest

from harness.check_request import LOSS_REGEX
from harness.inject.loss_log import LossLog, reached_before
from harness.store import read_records

LINE = r"step (?P<step>[\d,]+) loss (?P<loss>\S+)"


def events(folder, rank=0):
    records, problems = read_records(folder / f"rank-{rank}.jsonl")
    assert problems == []
    return [{key: value for key, value in record.items() if key not in ("time_s", "pid")} for record in records]


@pytest.fixture
def golden(tmp_path):
    """An uninterrupted run with a line for every fifth step."""
    folder = tmp_path / "golden"
    folder.mkdir()
    log = LossLog(LINE, folder, 1, None)
    log.read("out", b"".join(b"step %d loss %d.5\n" % (step, step) for step in (5, 10, 15, 20)))
    log.end(done=True, reached=(0, 0))
    return folder


def test_the_uninterrupted_run_counts_its_lines(golden):
    start, resume, *batches, end = events(golden)
    assert (start["event"], start["world_size"]) == ("start", 1)
    assert (resume["step"], resume["checkpoint"], resume["told_by"]) == (0, None, "log")
    assert [(b["batch"], b["step"], float.fromhex(b["loss"])) for b in batches] == [
        (1, 5, 5.5),
        (2, 10, 10.5),
        (3, 15, 15.5),
        (4, 20, 20.5),
    ]
    assert (end["event"], end["step"], end["batches"]) == ("end", 20, 4)


def test_a_restart_counts_as_the_uninterrupted_run_does(golden, tmp_path):
    log = LossLog(LINE, tmp_path, 2, golden)
    found = log.read("out", b"step 7 loss 1\nstep 15 loss 2\nstep 20 loss nan\nstep 25 loss 3\n")
    log.end(done=False, reached=(2, 10))
    assert [record["event"] for record in found] == ["start", "resume", "batch", "batch", "batch"]
    _, resume, *batches = events(tmp_path, rank=1)
    assert (resume["step"], resume["batch"], resume["checkpoint"]) == (10, 2, "(before step 15)")
    # The uninterrupted run says nothing of step 7; step 25 comes after its end.
    assert [(b["batch"], b["step"], b["loss"]) for b in batches] == [(3, 15, (2.0).hex()), (4, 20, "nan"), (5, 25, (3.0).hex())]
    assert events(tmp_path, rank=0) == [{**record, "rank": 0} for record in events(tmp_path, rank=1)]


NANO = b"step 4: train loss 4.1, val loss 4.2\niter 4: loss 4.0\n"


def nano(tmp_path, **more):
    """A log as many small trainers write it: a line for each step, and one of the evaluation for every fourth."""
    return LossLog(LOSS_REGEX, tmp_path, 1, **more)


def whole(folder, text, pattern=LOSS_REGEX, name="whole"):
    """The folder of an uninterrupted run that says this."""
    made = folder / name
    made.mkdir()
    log = LossLog(pattern, made, 2, None)
    log.read("out", text)
    log.end(done=True, reached=(0, 0))
    assert events(made, rank=1) == [{**record, "rank": 1} for record in events(made)]
    return made


def lines(folder):
    return [(e["batch"], e["step"], float.fromhex(e["loss"])) for e in events(folder) if e["event"] == "batch"]


def test_of_several_kinds_of_lines_the_one_that_most_are_of_speaks_for_the_job(tmp_path):
    text = b"iter 3: loss 3.0\n" + NANO + b"iter 5: loss 5.0\nstep 5 final loss 0.5\n"
    golden = whole(tmp_path, text)
    assert lines(golden) == [(1, 3, 3.0), (2, 4, 4.0), (3, 5, 5.0)]
    assert events(golden)[-1]["batches"] == 3
    restarted = tmp_path / "restarted"
    restarted.mkdir()
    log = nano(restarted, golden=golden)
    found = log.read("out", NANO + b"iter 5: loss 5.5\n")
    log.end(done=True, reached=(2, 4))
    assert [record["event"] for record in found] == ["start", "resume", "batch", "batch"]
    assert (found[1]["step"], found[1]["batch"]) == (3, 1)
    assert lines(restarted) == [(2, 4, 4.0), (3, 5, 5.5)]


def test_words_beside_the_loss_tell_kinds_apart_and_numbers_do_not(tmp_path):
    text = b"".join(b"[%d it/s] step %d train loss %d.0\nstep %d val loss 9\n" % (9 - s, s, s, s) for s in (1, 2, 3))
    assert lines(whole(tmp_path, text)) == [(1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0)]


def test_steps_that_begin_again_with_each_epoch_are_known_by_both(tmp_path):
    text = b"".join(b"Epoch [%d/2], Step [%d/3], Loss: %d.%d\n" % (e, s, e, s) for e in (1, 2) for s in (1, 2, 3))
    golden = whole(tmp_path, text)
    assert lines(golden) == [(1, 1, 1.1), (2, 2, 1.2), (3, 3, 1.3), (4, 4, 2.1), (5, 5, 2.2), (6, 6, 2.3)]
    restarted = tmp_path / "restarted"
    restarted.mkdir()
    log = nano(restarted, golden=golden)
    log.read("out", b"Epoch [2/2], Step [2/3], Loss: 2.2\nEpoch [3/2], Step [1/3], Loss: 3.1\n")
    assert lines(restarted) == [(5, 5, 2.2), (7, 7, 3.1)]
    assert events(restarted)[1]["step"] == 4


def test_steps_that_count_over_all_epochs_keep_their_numbers(tmp_path):
    assert lines(whole(tmp_path, b"epoch 1 step 10 loss 1\nepoch 2 step 20 loss 2\n")) == [(1, 10, 1.0), (2, 20, 2.0)]


def test_lines_of_which_no_order_is_known_stay_as_they_are_for_whoever_refuses_them(tmp_path):
    text = b"[rank0] step 1 loss 1\n[rank1] step 1 loss 2\n[rank0] step 2 loss 3\n"
    assert [step for _, step, _ in lines(whole(tmp_path, text))] == [1, 1, 2]


def test_a_line_may_end_with_a_carriage_return(tmp_path):
    assert lines(whole(tmp_path, b"\rstep 1 loss 1\rstep 2 loss 2\r\nstep 3 loss 3\n")) == [(1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0)]


def test_the_log_of_an_older_harness_is_known_by_its_steps(tmp_path):
    golden = tmp_path / "golden"
    golden.mkdir()
    old = {"event": "batch", "rank": 0, "batch": 2, "step": 7, "epoch": 0, "batch_in_epoch": 0, "loss": "0x1p+0"}
    (golden / "rank-0.jsonl").write_text(json.dumps(old) + "\n")
    assert [r["batch"] for r in nano(tmp_path, golden=golden).read("out", b"step 7 loss 1\n") if r["event"] == "batch"] == [2]


def test_a_line_may_come_in_pieces_and_from_two_streams(tmp_path):
    log = LossLog(LINE, tmp_path, 1, None)
    assert log.read("out", b"step 1 lo") == []
    assert log.read("err", b"a warning\nstep") == []
    assert [r["event"] for r in log.read("out", b"ss 2.5\nstep 2")] == ["start", "resume", "batch"]
    assert [r["step"] for r in log.read("out", b",000 loss 1e-3\n")] == [2000]
    assert [r["step"] for r in log.read("err", b" 3 loss 4\n")] == [3]


@pytest.mark.parametrize("line", [b"step x loss 1\n", b"step 1 loss much\n", b"loss 1\n", b"\xff\xfe step 1 lo\n"])
def test_lines_without_two_numbers_say_nothing(tmp_path, line):
    assert LossLog(r"step (?P<step>\S+) loss (?P<loss>\S+)", tmp_path, 1, None).read("out", line) == []


def test_a_finished_job_that_is_started_again_has_done_what_was_done_before(golden, tmp_path):
    log = LossLog(LINE, tmp_path, 1, golden)
    log.end(done=True, reached=reached_before([golden]))
    (end,) = events(tmp_path)
    assert (end["step"], end["batches"]) == (20, 4)
    assert reached_before([tmp_path / "nothing"]) == (0, 0)


@pytest.mark.parametrize(
    ("line", "step", "loss"),
    [
        ("step 10: loss 2.31", "10", "2.31"),
        ("iter 1,000 | loss=2.31e+00 | lr 1e-4", "1,000", "2.31e+00"),
        (json.dumps({"step": 3, "lr": 0.1, "loss": 0.5}), "3", "0.5"),
        ("[rank0] Step: 7 train loss: nan", "7", "nan"),
        ("Iteration 12 grad 4.0 loss: -1", "12", "-1"),
    ],
)
def test_the_usual_lines_need_no_expression(line, step, loss):
    match = re.search(LOSS_REGEX, line)
    assert (match["step"], match["loss"]) == (step, loss)


@pytest.mark.parametrize("line", ["loss 3 at step 4", "stepping 3 loss 4", "step 3 lossless 4", ""])
def test_other_lines_are_left_alone(line):
    assert re.search(LOSS_REGEX, line) is None
