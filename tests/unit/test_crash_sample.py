"""Which crash states are tried first, of hand-made directories."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.crash_sample import _evenly, telling_first
from harness.pieces import Piece
from harness.tree import Entry


def file(source, size=8):
    return Entry("file", 0o644, (Piece(size, source),) if size else ())


OLD, NEW = file(0), file(100)


def pieces_of(count):
    """A new file that grows under a temporary name."""
    return [{"a.pt": OLD, "b.tmp": file(100, size)} for size in range(count)]


def test_a_removal_that_comes_too_early_is_in_every_sample_that_is_not_tiny():
    grown = {"a.pt": OLD, "b.tmp": NEW}
    trees = [{"a.pt": OLD}, *pieces_of(8), grown, {"b.tmp": NEW}, {"b.pt": NEW}, {"b.pt": NEW, "c.log": file(500)}]
    torn = trees.index({"b.tmp": NEW})
    order = telling_first(trees, {"a.pt": OLD}, {"b.pt": NEW})
    assert sorted(order) == list(range(len(trees)))
    assert order[:3] == [0, len(trees) - 1, torn]
    # One of each sort comes before a second one of any: nothing, empty, a part, all, removed, renamed, and what follows.
    assert len({_look(trees[place]) for place in order[:7]}) == 7


def _look(tree):
    return tuple(
        (path, min(sum(piece.size_bytes for piece in entry.pieces), 1)) for path, entry in tree.items()
    ), NEW in tree.values()


def test_a_file_that_is_written_in_place_is_torn_while_it_is():
    trees = [{"a.pt": OLD}, *({"a.pt": file(100, size)} for size in range(8)), {"a.pt": NEW}]
    order = telling_first(trees, {"a.pt": OLD}, {"a.pt": NEW})
    assert order[:2] == [0, 9]
    assert set(order[2:4]) == {1, 5}, "emptied, and half-way"


def test_without_a_state_there_is_no_order():
    assert telling_first([], {}, {}) == []
    assert telling_first([{"a": OLD}], {}, {"a": OLD}) == [0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 17, 100])
def test_every_first_part_of_an_even_order_is_spread_over_all(count):
    order = _evenly(range(count))
    assert sorted(order) == list(range(count))
    assert order[:3] == [0, count - 1, (count - 1) // 2][: len(order)] or count < 3
    for length in range(3, count):
        some = sorted(order[:length])
        assert max(after - before for before, after in pairwise(some)) <= 4 * count / length
