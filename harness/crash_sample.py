"""Which crash states are tried first, where there may be no room for all of them.

Responsible for: an order of which every first part is a fair sample: one state of each look before a second one of any, those in
which neither the old checkpoint nor the new one stands among the first, and of what is left over evenly spread ones.
Not responsible for: which states there are (`harness.crash_states`), or how many can be tried (`harness.explore`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TypeVar

from harness.pieces import Piece
from harness.tree import Entry, Tree

Look = tuple[tuple[str, str, str, str], ...]  # per name: its kind, where it points to, and how much of it is there
Whole = Set[tuple[Piece, ...]]  # contents of files that are complete
_T = TypeVar("_T")


def look_of(tree: Tree, whole: Whole) -> Look:
    """What a restart can tell at a glance: which names there are, and whether each is whole, empty, or something in between."""
    return tuple((path, entry.kind, entry.target, _amount(entry, whole)) for path, entry in sorted(tree.items()))


def whole_files(*trees: Tree) -> Whole:
    """The contents of all files of these directories."""
    return {entry.pieces for tree in trees for entry in tree.values() if entry.kind == "file"}


def telling_first(trees: Sequence[Tree], before: Tree, after: Tree) -> list[int]:
    """The places of all directories, the most telling first.

    Args:
        trees: the directories, in the order in which a save goes through them.
        before: the directory before the save.
        after: the directory after it.
    """
    whole = whole_files(before, after)
    looks: dict[Look, list[int]] = {}
    for place, tree in enumerate(trees):
        looks.setdefault(look_of(tree, whole), []).append(place)
    middles = [places[len(places) // 2] for places in looks.values()]
    torn = [place for place in middles if _is_between(trees[place], before, after)]
    others = [place for place in middles if place not in torn]
    ends = [0, len(trees) - 1] if trees else []
    # By turns: what is torn between two checkpoints loses them, but not only there things go wrong.
    turns = [place for pair in _pairs(_evenly(torn), _evenly(others)) for place in pair]
    return list(dict.fromkeys([*ends, *turns, *_evenly(range(len(trees)))]))


def _amount(entry: Entry, whole: Whole) -> str:
    if entry.kind != "file" or entry.pieces in whole:
        return "whole"
    return "part" if any(piece.size_bytes for piece in entry.pieces) else "empty"


def _is_between(tree: Tree, before: Tree, after: Tree) -> bool:
    """Whether something of the old state is gone already, and something of the new one is not there yet."""
    return all(any(tree.get(path) != entry for path, entry in end.items() if entry.kind != "dir") for end in (before, after))


def _pairs(some: Sequence[int], others: Sequence[int]) -> Iterable[tuple[int, ...]]:
    for number in range(max(len(some), len(others))):
        yield (*some[number : number + 1], *others[number : number + 1])


def _evenly(places: Sequence[_T]) -> list[_T]:
    """The same, so that every first part of it is spread over all: both ends, the middle, the quarters, and so on."""
    if len(places) < 3:
        return list(places)
    ordered, steps = [places[0], places[-1]], [(0, len(places) - 1)]
    for first, last in steps:  # grows while it is gone through
        middle = (first + last) // 2
        if first < middle:
            ordered.append(places[middle])
            steps += [(first, middle), (middle, last)]
    return ordered
