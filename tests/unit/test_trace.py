"""A trace as data: saves, occurrences, what differs between two runs, and which order is enforced."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.trace import (
    InitialFile,
    Mark,
    Operation,
    Order,
    SaveWindow,
    Stretch,
    Trace,
    first_difference,
    read_trace,
    save_of_path,
    stable_pattern,
)


def trace_of(*events):
    """Events as (rank, operation, path[, to]) or as marks; numbers are given in order."""
    made, counts = [], {}
    for event in events:
        if isinstance(event, Mark):
            made.append(event)
            continue
        rank, operation, path, *to = event
        index = counts.get(rank, 0)
        counts[rank] = index + 1
        number = sum(counts.values())
        target = to[0] if to else None
        made.append(Operation(number, rank, index, operation, operation, path, target, 10, created=operation == "open"))
    return Trace((), tuple(made), Path("data.bin"))


def save(rank, moment, checkpoint, step=1):
    return Mark(rank, "save", moment, step, checkpoint)


def test_saves_are_told_apart_by_what_the_ranks_said():
    trace = trace_of(
        save(0, "begin", "s1"), (0, "open", "s1/a"), save(1, "begin", "s1"), save(0, "end", "s1"), save(1, "end", "s1"),
        (0, "unlink", "old"), save(0, "begin", "s2", 2), (0, "open", "s2/a"),
    )  # fmt: skip
    assert trace.saves() == [SaveWindow("s1", 0, 6, 3), SaveWindow("s2", 6, 8, None)]


def test_a_name_that_is_used_again_is_another_save():
    trace = trace_of(
        save(0, "begin", "latest", 1), (0, "open", "latest"), save(0, "end", "latest", 1), save(0, "begin", "latest", 2)
    )
    assert [(window.name, window.start, window.returned) for window in trace.saves()] == [("latest", 0, 2), ("latest", 3, None)]


def test_what_is_removed_before_a_save_says_that_it_begins_belongs_to_it():
    batch = Mark(0, "batch", "", 1, None)
    first = [save(0, "begin", "s1"), (0, "rename", "s1.tmp", "s1"), (0, "unlink", "s0"), save(0, "end", "s1")]
    said = Mark(0, "state", "saving", 1, None)  # right before the save begins
    trace = trace_of(batch, *first, batch, (0, "unlink", "s1"), said, save(0, "begin", "s2"), (0, "rename", "s2.tmp", "s2"))
    assert [(window.name, window.start, window.stop) for window in trace.saves()] == [("s1", 1, 6), ("s2", 6, 10)]


def names(*events):
    return [(window.name, window.start) for window in trace_of(*events).saves()]


def test_without_marks_saves_are_told_apart_by_their_numbers():
    assert names((0, "open", "ckpt-1.pt"), (0, "open", "ckpt-2.pt"), (1, "open", "rank1-ckpt-2.pt")) == [
        ("ckpt-1.pt", 0),
        ("ckpt-2.pt", 1),
    ]
    assert names((0, "mkdir", "checkpoint-0"), (0, "open", "checkpoint-0/a9"), (0, "mkdir", "checkpoint-1")) == [
        ("checkpoint-0", 0),
        ("checkpoint-1", 2),
    ]


def test_without_marks_a_file_that_is_made_again_begins_a_save():
    assert names((0, "open", "model"), (0, "open", "optimizer"), (0, "open", "model"), (0, "open", "optimizer")) == [
        ("model", 0),
        ("model", 2),
    ]


def test_a_temporary_file_counts_under_the_name_that_it_gets():
    assert names(
        (0, "open", ".tmp7x"), (0, "rename", ".tmp7x", "ckpt"), (0, "open", ".tmp3y"), (0, "rename", ".tmp3y", "ckpt")
    ) == [
        ("ckpt", 0),
        ("ckpt", 2),
    ]
    assert names((0, "mkdir", "tmp-1"), (0, "open", "tmp-1/a"), (0, "rename", "tmp-1", "step-1"), (0, "mkdir", "step-2")) == [
        ("step-1", 0),
        ("step-2", 3),
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("step-3.tmp/rank0.bin", "step-3"),
        (".tmp-step-3", "step-3"),
        ("tmp-checkpoint-10", "checkpoint-10"),
        ("temperature.pt", "temperature.pt"),
        ("ckpt.pt.123-abc.tmp", "ckpt.pt.123-abc"),
        ("./model.partial", "model"),
        ("tmp", "tmp"),
    ],
)
def test_the_checkpoint_of_a_path(path, name):
    assert save_of_path(path) == name


def test_occurrences_count_per_rank_and_pattern():
    trace = trace_of((0, "open", "a.tmp"), (1, "open", "b.tmp"), (0, "open", "c.tmp"), (0, "write", "c.tmp"))
    ours = trace.of_rank(0)
    assert trace.occurrence(ours[1], "*.tmp") == 2
    assert trace.occurrence(ours[1], "c.tmp") == 1
    assert trace.occurrence(trace.of_rank(1)[0], "*.tmp") == 1
    assert trace.occurrence(ours[2], "*.tmp") == 1


def test_two_runs_that_do_the_same_do_not_differ():
    one = trace_of((0, "open", "x.17.tmp"), (1, "open", "b"), (0, "rename", "x.17.tmp", "x"))
    other = trace_of((1, "open", "b"), (0, "open", "x.18.tmp"), (0, "rename", "x.18.tmp", "x"))
    assert first_difference(one, other) == ""


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([(0, "open", "x"), (0, "open", "z")], "rank 0 did 1 operations in one run, 2 in the other"),
        ([(0, "mkdir", "x")], "rank 0, operation 1: open x (10 bytes) in one run, mkdir x (10 bytes) in the other"),
        ([(0, "open", "x"), (1, "open", "y")], "ranks [0] wrote in one run, [0, 1] in the other"),
    ],
)
def test_where_two_runs_differ(other, text):
    assert first_difference(trace_of((0, "open", "x")), trace_of(*other)) == text


def test_a_name_that_means_two_files_is_a_difference():
    one = trace_of((0, "open", "a"), (0, "open", "b"), (0, "unlink", "a"))
    other = trace_of((0, "open", "a"), (0, "open", "b"), (0, "unlink", "b"))
    assert first_difference(one, other).startswith("rank 0, operation 3: unlink a")


@pytest.mark.parametrize(
    ("ours", "theirs", "pattern"),
    [
        ("step-1/rank0.bin", "step-1/rank0.bin", "step-1/rank0.bin"),
        ("a.pt.123-ab.tmp", "a.pt.124-cd.tmp", "a.pt.*.tmp"),
        (".tmpAbC", ".tmpXyZ", ".*"),
        ("d/.tmp1", "d/.tmp2", "d/.*"),
        ("a/b", "a", "a/b"),
        ("x-10-y", "x-9-y", "x-*-y"),
    ],
)
def test_a_pattern_that_is_valid_in_every_run(ours, theirs, pattern):
    assert stable_pattern(ours, theirs) == pattern


def test_an_order_is_enforced_if_every_run_kept_it():
    natural = trace_of((0, "open", "a"), (1, "open", "b"), (0, "write", "c"))
    rank_0_last = trace_of((1, "open", "b"), (0, "open", "a"), (0, "write", "c"))
    order = Order.learn([natural, rank_0_last])
    assert order.by_luck((0, 0), (1, 0))
    assert order.enforced((1, 0), (0, 1))
    assert not order.enforced((0, 1), (1, 0))


def test_records_are_read_back(tmp_path):
    common = {"call": "openat", "size_bytes": 0, "to": None, "time_s": 5.0}
    records = [
        {"event": "initial", "path": "old", "kind": "file", "inode": 3, "mode": 420, "data": [0, 2, "ab"]},
        {"event": "initial", "path": "l", "kind": "link", "inode": 4, "mode": 511, "target": "old"},
        {"event": "mark", "rank": 0, "what": "save", "moment": "begin", "step": 1, "checkpoint": "s"},
        {"event": "operation", "n": 1, "rank": 0, "operation": "open", "path": "new", **common},
        {"event": "did", "n": 1, "inode": 9, "created": True, "mode": 420},
        {"event": "operation", "n": 2, "rank": 0, "operation": "open", "path": "never", **common},
        {"event": "operation", "n": 3, "rank": 1, "operation": "rename", "path": "new", **common, "to": "x"},
        {"event": "did", "n": 3, "error": "ENOENT"},
        {"event": "unfollowed", "what": "odd"},
        {"event": "unfollowed", "what": "odd"},
    ]
    trace = read_trace(tmp_path, records)
    assert trace.initial == (
        InitialFile("old", "file", 3, 420, Stretch(0, 2, "ab")),
        InitialFile("l", "link", 4, 511, None, "old"),
    )
    assert trace.problems == ("odd",)
    assert trace.ranks == [0, 1]
    mark, opened, renamed = trace.events
    assert (mark.what, mark.moment, mark.checkpoint) == ("save", "begin", "s")
    assert (opened.path, opened.created, opened.inode, opened.index, opened.time_s) == ("new", True, 9, 0, 5.0)
    assert (renamed.error, renamed.names) == ("ENOENT", ["new", "x"])


def test_a_save_that_begins_under_a_temporary_name_goes_by_the_one_that_it_ends_with():
    events = [save(0, "begin", "c-3.pt.tmp"), (0, "write", "c-3.pt.tmp"), save(0, "end", "c-3.pt")]
    events += [save(0, "begin", "c-6.pt.tmp", 2), (0, "write", "c-6.pt.tmp"), save(0, "end", "c-6.pt", 2)]
    found = trace_of(*events).saves()
    assert [(one.name, one.returned) for one in found] == [("c-3.pt", 2), ("c-6.pt", 5)]
