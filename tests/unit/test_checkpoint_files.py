"""What can be known of a checkpoint directory without torch."""

from __future__ import annotations

import hashlib
import json

import pytest

from harness import checkpoint_files
from harness.store import RunDirectory


@pytest.fixture
def case(tmp_path):
    """A run directory whose first attempt has committed `a` with these bytes, and whose checkpoint directory is empty."""

    def make(content):
        directory = RunDirectory(tmp_path)
        directory.checkpoints.mkdir()
        directory.attempt(0).mkdir()
        files = {"a": [len(content), hashlib.sha256(content).hexdigest()]}
        record = {"event": "committed", "step": 1, "checkpoint": "a", "files": files}
        (directory.attempt(0) / "attempt.jsonl").write_text(json.dumps(record) + "\n")
        return directory

    return make


def test_a_listing_has_the_head_of_what_has_grown(case):
    directory = case(b"one")
    (directory.checkpoints / "a").write_bytes(b"one and more")
    (directory.checkpoints / "b").write_bytes(b"other")
    found = checkpoint_files.listing(directory, directory.checkpoints)
    assert found["heads"] == {"a": [(3, hashlib.sha256(b"one").hexdigest())]}
    assert {path: size for path, (size, _) in found["files"].items()} == {"a": 12, "b": 5}


def test_a_listing_has_the_head_of_what_an_attempt_began_with(case):
    directory = case(b"one")
    begun = {"event": "files", "moment": "begin", "files": {"a": [7, "x"]}}
    directory.attempt(1).mkdir()
    (directory.attempt(1) / "attempt.jsonl").write_text(json.dumps(begun) + "\n")
    (directory.checkpoints / "a").write_bytes(b"one and more")
    heads = checkpoint_files.listing(directory, directory.checkpoints)["heads"]
    assert heads == {"a": [(size, hashlib.sha256(b"one and more"[:size]).hexdigest()) for size in (3, 7)]}


@pytest.mark.parametrize("content", [None, b"on", b"two"])
def test_what_is_gone_or_has_not_grown_has_no_head(case, content):
    directory = case(b"one")
    if content is not None:
        (directory.checkpoints / "a").write_bytes(content)
    assert checkpoint_files.listing(directory, directory.checkpoints)["heads"] == {}


def test_a_link_in_the_place_of_a_file_has_no_head(case, tmp_path):
    directory = case(b"one")
    (tmp_path / "elsewhere").write_bytes(b"one and more")
    (directory.checkpoints / "a").symlink_to(tmp_path / "elsewhere")
    assert checkpoint_files.listing(directory, directory.checkpoints)["heads"] == {}


@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ("iter8", True),
        ('{"latest": "iter8"}', True),
        ("8", True),
        ("iter4", False),
        ("", False),
        ("8 9", False),
        ("iter8 " * 200, False),
    ],
)
def test_a_few_bytes_that_name_another_entry_are_a_pointer(tmp_path, content, pointer):
    (tmp_path / "iter8").mkdir()
    (tmp_path / "latest").write_text(content)
    assert checkpoint_files.is_pointer(tmp_path, "latest") is pointer
    assert not checkpoint_files.is_pointer(tmp_path, "iter8")


def test_a_link_is_a_pointer_and_bytes_that_are_no_text_are_none(tmp_path):
    (tmp_path / "iter8").write_bytes(b"\xff\xfe")
    (tmp_path / "latest").symlink_to("iter8")
    assert checkpoint_files.is_pointer(tmp_path, "latest")
    assert not checkpoint_files.is_pointer(tmp_path, "iter8")
