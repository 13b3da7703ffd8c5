"""What ext4 and XFS guard by themselves, on hand-written traces; `test_power_cuts_are_real.py` has the ground truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.crash import Model
from harness.crash_states import lost_changes, power_choices
from harness.fault import Survivors
from harness.grammar import parse
from harness.trace import InitialFile, Operation, Stretch, Trace

DURABLE = InitialFile("old", "file", 2, 0o644, Stretch(0, 3000, ""))


class Writer:
    """A trace, written call by call; the file `old` of 3000 bytes is durable."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._inodes = {"old": 2}

    def do(self, operation: str, path: str, to: str | None = None, **facts) -> Writer:
        if operation == "rename" and path in self._inodes:
            self._inodes[to] = self._inodes.pop(path)
        inode = self._inodes.setdefault(path, len(self._inodes) + 10) if operation != "rename" else 0
        number = len(self.operations)
        facts = {"inode": inode, "mode": 0o644, **facts}
        self.operations.append(Operation(number + 1, 0, number, operation, operation, path, to, 0, **facts))
        return self

    def put(self, path: str, size_bytes: int, offset: int = 0, **facts) -> Writer:
        self.do("open", path, **({"created": True} | facts))
        return self.do("write", path, offset=offset, data=Stretch(10_000, size_bytes, ""))

    def after(self, words: str) -> dict[str, tuple[int, bool]]:
        """Per file of the state after this cut: its length, and whether any of it is zeros."""
        tree = self.model.after_power_loss(survivors(words))
        return {
            path: (sum(piece.size_bytes for piece in entry.pieces), any(piece.source < 0 for piece in entry.pieces))
            for path, entry in tree.items()
        }

    @property
    def model(self) -> Model:
        root = InitialFile(".", "dir", 1, 0o755)
        model = Model.of(Trace((root, DURABLE), tuple(self.operations), Path("none")))
        model.run(self.operations)
        return model


def survivors(words: str) -> Survivors:
    return parse(f"power-cut keeping {words} at step 1").survivors


@pytest.mark.parametrize("word", ["rewritten", "guarded"])
def test_the_words_are_read_back(word):
    sentence = f"power-cut keeping 2 names and {word} data of *.tmp after rename x"
    assert str(parse(sentence)) == sentence


def test_a_file_that_replaced_another_keeps_its_content_where_it_is_guarded():
    writer = Writer().put("tmp", 9000).do("rename", "tmp", "old").put("new", 9000)
    assert writer.after("all names and guarded data") == {"old": (9000, False), "new": (0, False)}
    assert writer.after("all names and rewritten data") == {"old": (0, False), "new": (0, False)}
    assert [change.node for change in lost_changes(writer.model, survivors("all names and guarded data"))] == [3]


def test_a_file_that_got_a_new_name_is_not_guarded():
    writer = Writer().put("tmp", 9000).do("rename", "tmp", "new")
    assert writer.after("all names and guarded data") == {"old": (3000, False), "new": (0, False)}


@pytest.mark.parametrize("word", ["rewritten", "guarded"])
def test_a_file_that_was_emptied_and_written_anew_keeps_its_content(word):
    writer = Writer().put("old", 9000, created=False, emptied=True).put("new", 9000)
    assert writer.after(f"all names and {word} data") == {"old": (9000, False), "new": (0, False)}


def test_a_file_that_grew_ends_in_zeros_up_to_the_end_of_its_last_durable_block():
    assert Writer().put("old", 9000, 3000, created=False).after("no names and guarded data") == {"old": (4096, True)}
    assert Writer().put("old", 100, 3000, created=False).after("no names and guarded data") == {"old": (3100, True)}
    assert Writer().put("old", 9000, 3000, created=False).after("no names and rewritten data") == {"old": (3000, False)}


def test_a_copy_of_the_model_knows_what_is_guarded():
    model = Writer().put("tmp", 9000).do("rename", "tmp", "old").model.copy()
    assert (
        sum(piece.size_bytes for piece in model.after_power_loss(survivors("all names and guarded data"))["old"].pieces) == 9000
    )


def test_each_choice_is_offered_once():
    choices = list(power_choices(Writer().put("a", 1).put("b", 1).do("rename", "a", "c").model))
    assert len(choices) == len(set(choices))
    assert {choice.data for choice in choices} == {"all", "no", "empty", "zeroed", "torn", "rewritten", "guarded"}
