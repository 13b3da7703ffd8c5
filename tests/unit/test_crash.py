"""The model of a checkpoint directory: what an operation does, what a sync makes durable, what a power cut takes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.crash import Change, Model, flatten
from harness.crash_states import block_boundaries, lost_changes, power_choices
from harness.fault import Position, Survivors
from harness.trace import InitialFile, Operation, Stretch, Trace
from harness.tree import Contents, Piece, build, difference, read_tree

ALL = Survivors()


class Job:
    """A trace that is written down call by call; `data` is what its data file holds."""

    def __init__(self, tmp_path):
        self.file = tmp_path / "data.bin"
        self.file.write_bytes(b"")
        self.operations: list[Operation] = []
        self.initial: list[InitialFile] = [InitialFile(".", "dir", 1, 0o755)]

    def keep(self, content: bytes) -> Stretch:
        start = self.file.stat().st_size
        with self.file.open("ab") as file:
            file.write(content)
        return Stretch(start, len(content), hashlib.sha256(content).hexdigest())

    def had(self, path, content, inode):
        self.initial.append(InitialFile(path, "file", inode, 0o644, self.keep(content)))

    def do(self, operation, path, to=None, *, call=None, content=None, **fields):
        data = None if content is None else self.keep(content)
        size = 0 if content is None else len(content)
        number = len(self.operations) + 1
        made = Operation(
            number, fields.pop("rank", 0), number - 1, operation, call or operation, path, to, size, data=data, **fields
        )
        self.operations.append(made)
        return made

    def create(self, path, content, inode):
        self.do("open", path, inode=inode, created=True, mode=0o644)
        self.do("write", path, inode=inode, content=content)

    def model(self):
        trace = Trace(tuple(self.initial), tuple(self.operations), self.file)
        model = Model.of(trace)
        model.run(self.operations)
        return model

    def bytes_in(self, tree):
        data = self.file.read_bytes()
        return {
            path: b"".join(
                bytes(p.size_bytes) if p.source < 0 else data[p.source : p.source + p.size_bytes] for p in entry.pieces
            )
            for path, entry in tree.items()
            if entry.kind == "file"
        }

    def after(self, survivors):
        return self.bytes_in(self.model().after_power_loss(survivors))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


NOTHING = Survivors(0, 0, "no")


def test_without_a_sync_nothing_survives(job):
    job.create("new", b"content", 10)
    assert job.bytes_in(job.model().everything()) == {"new": b"content"}
    assert job.after(NOTHING) == {}


def test_a_sync_of_the_file_keeps_its_content_and_not_its_name(job):
    job.create("new", b"content", 10)
    job.do("fsync", "new", inode=10)
    assert job.after(NOTHING) == {}
    assert job.after(Survivors(-1, 0, "no")) == {"new": b"content"}


def test_a_sync_of_the_directory_keeps_the_name_and_not_the_content(job):
    job.create("new", b"content", 10)
    job.do("fsync", ".", inode=1)
    assert job.after(NOTHING) == {"new": b""}


def test_both_syncs_keep_both(job):
    job.create("new", b"content", 10)
    job.do("fsync", "new", inode=10)
    job.do("fsync", ".", inode=1)
    assert job.model().pending == []
    assert job.after(NOTHING) == {"new": b"content"}


@pytest.mark.parametrize("call", ["sync", "syncfs"])
def test_a_sync_of_everything(job, call):
    job.create("new", b"content", 10)
    job.do("fsync", ".", call=call)
    assert job.after(NOTHING) == {"new": b"content"}


def test_sync_file_range_promises_nothing(job):
    job.create("new", b"content", 10)
    job.do("fsync", "new", inode=10, call="sync_file_range")
    assert job.after(Survivors(-1, 0, "no")) == {"new": b""}


def test_what_was_written_through_a_synchronous_descriptor_is_durable(job):
    job.do("open", "new", inode=10, created=True)
    job.do("write", "new", inode=10, content=b"content", synced=True)
    assert job.after(Survivors(-1, 0, "no")) == {"new": b"content"}


def test_what_was_there_before_is_durable(job):
    job.had("old", b"old content", 5)
    job.do("unlink", "old", inode=5)
    assert job.bytes_in(job.model().everything()) == {}
    assert job.after(NOTHING) == {"old": b"old content"}
    assert job.after(ALL) == {}


def test_a_rename_without_a_sync_of_the_file_can_leave_an_empty_file(job):
    job.had("ckpt", b"old", 5)
    job.create("ckpt.tmp", b"new content", 10)
    job.do("rename", "ckpt.tmp", "ckpt", inode=10)
    job.do("fsync", ".", inode=1)
    assert job.after(Survivors(-1, 0, "no")) == {"ckpt": b""}
    assert job.after(Survivors(-1, 0, "zeroed")) == {"ckpt": bytes(11)}


def test_a_rename_without_a_sync_of_the_directory_can_be_undone(job):
    job.had("ckpt", b"old", 5)
    job.create("ckpt.tmp", b"new", 10)
    job.do("fsync", "ckpt.tmp", inode=10)
    job.do("rename", "ckpt.tmp", "ckpt", inode=10)
    assert job.after(Survivors(1, 0, "all")) == {"ckpt": b"old", "ckpt.tmp": b"new"}
    assert job.after(NOTHING) == {"ckpt": b"old"}
    assert job.after(ALL) == {"ckpt": b"new"}


def test_a_file_in_a_directory_whose_own_name_is_lost_is_lost(job):
    job.do("mkdir", "step", inode=7, mode=0o755)
    job.create("step/shard", b"content", 10)
    job.do("fsync", "step/shard", inode=10)
    job.do("fsync", "step", inode=7)
    assert job.after(NOTHING) == {}
    assert job.model().after_power_loss(NOTHING) == {}
    job.do("fsync", ".", inode=1)
    assert job.after(NOTHING) == {"step/shard": b"content"}


def test_an_overwritten_file_falls_back_to_its_last_sync_or_is_empty(job):
    job.had("ckpt", b"old", 5)
    job.do("open", "ckpt", inode=5, emptied=True)
    job.do("write", "ckpt", inode=5, content=b"new content")
    assert job.after(NOTHING) == {"ckpt": b"old"}
    assert job.after(Survivors(-1, 0, "empty")) == {"ckpt": b""}
    assert job.after(Survivors(-1, 0, "zeroed")) == {"ckpt": bytes(11)}
    assert job.after(ALL) == {"ckpt": b"new content"}


def test_a_torn_file_ends_at_a_block(job):
    job.do("open", "new", inode=10, created=True)
    for _ in range(3):
        job.do("write", "new", inode=10, offset=4096 * (len(job.operations) - 1), content=b"x" * 4096)
    assert job.after(Survivors(-1, 0, "torn", Position(percent=50.0))) == {"new": b"x" * 4096}
    assert job.after(Survivors(-1, 0, "torn", Position(byte=-1))) == {"new": b"x" * 8192}


def test_a_torn_append_ends_at_a_block_of_the_file(job):
    job.had("log", b"o" * 100, 10)
    job.do("write", "log", inode=10, offset=100, content=b"n" * 9000)
    torn = job.after(Survivors(-1, 0, "torn", Position(percent=50.0)))["log"]
    assert (len(torn), torn.count(b"n")) == (4096, 3996)
    assert job.after(Survivors(-1, 0, "torn", Position(byte=100)))["log"] == b"o" * 100


def test_only_the_files_that_are_meant_suffer(job):
    job.create("one", b"1", 10)
    job.create("two", b"2", 11)
    assert job.after(Survivors(-1, 0, "no", None, "two")) == {"one": b"1", "two": b""}
    assert job.after(Survivors(-1, 0, "torn", Position(byte=4096), "two")) == {"one": b"1", "two": b""}


def test_a_single_lost_name(job):
    job.create("one", b"1", 10)
    job.create("two", b"2", 11)
    assert job.after(Survivors(-1, 1, "all")) == {"two": b"2"}
    assert job.after(Survivors(-1, 2, "all")) == {"one": b"1"}


def test_a_failed_operation_did_nothing_unless_another_rank_was_first(job):
    job.do("mkdir", "step", error="EEXIST")  # in this order nobody was first
    job.do("open", "missing", error="ENOENT")
    job.do("rename", "nothing", "x", error="ENOENT")
    assert {path: entry.kind for path, entry in job.model().everything().items()} == {"step": "dir"}


def test_every_choice_says_which_changes_it_takes(job):
    job.create("one", b"x" * 9000, 10)
    job.do("rename", "one", "two", inode=10)
    model = job.model()
    choices = list(power_choices(model))
    assert len(choices) == len(set(choices))
    for choice in choices:
        lost = lost_changes(model, choice)
        assert lost, choice
        assert all(change.number not in model.durable for change in lost)
    assert lost_changes(model, ALL) == ()


@given(st.lists(st.tuples(st.integers(0, 40), st.none() | st.binary(max_size=20)), max_size=12))
@settings(max_examples=200, deadline=None)
def test_a_file_is_what_its_writes_make_it(steps):
    data, expected, changes = bytearray(), bytearray(), []
    for offset, content in steps:
        if content is None:
            expected = expected[:offset].ljust(offset, b"\0")
            changes.append(Change(len(changes), None, "data", 1, offset=offset))
            continue
        changes.append(Change(len(changes), None, "data", 1, offset=offset, data=Stretch(len(data), len(content), "")))
        data += content
        if content:
            expected = expected.ljust(offset, b"\0")
            expected[offset : offset + len(content)] = content
    pieces = flatten(changes)
    found = b"".join(bytes(p.size_bytes) if p.source < 0 else bytes(data[p.source : p.source + p.size_bytes]) for p in pieces)
    assert found == bytes(expected)
    assert all(piece.size_bytes > 0 for piece in pieces)


def test_a_state_is_built_exactly_and_told_from_others(job, tmp_path):
    job.do("mkdir", "step", inode=7, mode=0o750)
    job.create("step/shard", b"content", 10)
    job.do("write", "step/shard", inode=10, offset=9000, content=b"end")
    job.do("symlink", "latest", inode=12, target="step")
    tree, root = job.model().everything(), tmp_path / "built"
    root.mkdir()
    (root / "left over").write_text("x")
    build(tree, job.file, root)
    assert difference(tree, root, job.file) == ""
    assert (root / "step" / "shard").read_bytes() == b"content".ljust(9000, b"\0") + b"end"
    assert read_tree(root)["latest"] == ("link", 0, "step")
    with (root / "step" / "shard").open("r+b") as file:
        file.write(b"C")
    assert difference(tree, root, job.file).startswith("step/shard holds bytes that no operation")
    build(tree, job.file, root)
    (root / "step").chmod(0o700)
    assert "mode 700" in difference(tree, root, job.file)
    (root / "more").write_text("x")
    assert difference(tree, root, job.file) == "more is there, and no operation that was seen made it"


def test_equal_contents_have_equal_digests_whatever_wrote_them(job):
    job.create("one", b"abcdef", 10)
    job.do("open", "two", inode=11, created=True, mode=0o644)
    job.do("write", "two", inode=11, content=b"abc")
    job.do("write", "two", inode=11, offset=3, content=b"def")
    tree = job.model().everything()
    contents = Contents(job.file)
    assert contents.of(tree["one"].pieces) == contents.of(tree["two"].pieces) == hashlib.sha256(b"abcdef").hexdigest()
    assert contents.of((Piece(3, -1),)) == hashlib.sha256(bytes(3)).hexdigest()
    assert contents.digest_of({"a": tree["one"]}) == contents.digest_of({"a": tree["two"]})
    assert contents.digest_of({"a": tree["one"]}) != contents.digest_of({"b": tree["one"]})


@pytest.mark.parametrize(
    ("offset", "size", "places"),
    [(0, 4096, []), (0, 4097, [4096]), (100, 10_000, [3996, 8092]), (0, 40_960, [4096, 20_480, 36_864]), (4096, 10, [])],
)
def test_block_boundaries_within_a_write(offset, size, places):
    assert block_boundaries(offset, size) == places
