"""Two recordings of one job: what counts as the same, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.trace import Operation, Trace, first_difference, stable_pattern


def trace(*operations):
    return Trace((), tuple(operations), Path("data.bin"))


def op(name, path, to=None, *, rank=0, index=0, size=0, error="", inode=0):
    return Operation(index + 1, rank, index, name, name, path, to, size, error=error, inode=inode)


def test_a_name_that_is_drawn_anew_is_the_same_if_it_stands_for_the_same_file():
    one, other = (trace(op("open", f"a.{n}.tmp"), op("rename", f"a.{n}.tmp", "a", index=1)) for n in (1, 2))
    assert first_difference(one, other) == ""
    mixed = trace(op("open", "a.2.tmp"), op("rename", "a.3.tmp", "a", index=1))
    assert "operation 2" in first_difference(one, mixed)


@pytest.mark.parametrize("changed", [op("write", "a", size=2), op("fsync", "a", size=1), op("write", "a", size=1, error="EIO")])
def test_another_size_operation_or_error_is_a_difference(changed):
    assert "rank 0, operation 1" in first_difference(trace(op("write", "a", size=1)), trace(changed))


def test_a_pickle_of_unseeded_numbers_may_be_some_bytes_longer():
    sized = [trace(op("write", "a", size=size)) for size in (8062, 8141, 8400)]
    assert first_difference(sized[0], sized[1]) == ""
    assert "8062 bytes" in first_difference(sized[0], sized[2])


def test_the_filling_behind_such_a_pickle_is_as_much_shorter():
    def run(*sizes, opened="a"):
        return trace(op("open", opened), *(op("write", opened, index=n, size=size) for n, size in enumerate(sizes, 1)))

    assert first_difference(run(17733, 2043, 98), run(17780, 1996, 98)) == ""
    assert "operation 3" in first_difference(run(17733, 2043, 98), run(17780, 996, 98))
    assert "operation 2" in first_difference(run(43, 98), run(96, 98)), "a short file is compared to the byte"
    other = trace(op("write", "b", size=17733), op("open", "a", index=1), op("write", "a", index=2, size=43))
    longer = trace(op("write", "b", size=17733), op("open", "a", index=1), op("write", "a", index=2, size=96))
    assert "operation 3" in first_difference(other, longer)


def test_the_loser_of_a_race_for_a_name_does_the_same_as_its_winner():
    won, lost = (trace(op("rename", "d.tmp", "d", error=error)) for error in ("", "ENOENT"))
    assert first_difference(won, lost) == first_difference(lost, won) == ""
    assert first_difference(won, trace(op("rename", "d.tmp", "d", error="EIO"))) != ""


def test_an_open_file_goes_by_the_name_under_which_it_was_opened():
    def run(directory):
        return trace(op("open", "d.tmp/a", inode=7), op("write", f"{directory}/a", index=1, inode=7, size=1))

    assert first_difference(run("d.tmp"), run("d")) == ""


def test_a_number_of_an_inode_that_is_used_again_is_another_file():
    def run(drawn, inode):
        return trace(op("open", f"a.{drawn}", inode=7), op("fsync", "d", index=1, inode=inode))

    assert first_difference(run(1, 7), run(2, 8)) == ""


def test_a_pattern_covers_the_names_of_all_runs():
    assert stable_pattern("a.1.tmp", "a.2.tmp", "a.3.tmp") == "a.*.tmp"
    assert stable_pattern(".step-2/a", "step-2/a", ".step-2/a") == "*-2/a"
    assert stable_pattern("a/b", "b") == "a/b"
