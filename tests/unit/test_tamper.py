"""Tampering: one precise thing is wrong, everything else is what it was, every checksum on the way fits, and nothing runs."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fault import TAMPERINGS
from harness.inject.tamper import altered

PAYLOAD = {"schema": "ckpt.v1", "state": {"batch": 12}, "optimizer": [1.5], "model": {"a.bias": 1, "b.weight": 2}}
METADATA = {"state_dict_metadata": {"model.b.weight": 1, "small": 2}, "storage_data": {"small": "__0_0.distcp"}}
FOOTER = re.compile(rb"(?s)(.*)\nckpt\.v1 size=(\d{20}) sha256=([0-9a-f]{64})\n")
IN_MANIFESTS = (
    "unknown-schema",
    "unsafe-path-absolute",
    "unsafe-path-parent",
    "duplicate-rank",
    "missing-rank",
    "sha256-mismatch",
)


def archive(payload, protocol=2):
    """What `torch.save` writes, but for the alignment."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as new:
        new.writestr("archive/data.pkl", pickle.dumps(payload, protocol=protocol))
        new.writestr("archive/data/0", bytes(range(256)))
        new.writestr("archive/version", b"3\n")
    return file.getvalue()


def footed(body):
    return body + f"\nckpt.v1 size={len(body):020d} sha256={hashlib.sha256(body).hexdigest()}\n".encode()


def sealed(fields):
    return {**fields, "sha256": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}


def seal_fits(found):
    return sealed({key: value for key, value in found.items() if key != "sha256"}) == found


@pytest.fixture
def checkpoint(tmp_path):
    """A committed directory of two shards."""
    shards = []
    for rank in (0, 1):
        data = footed(archive({**PAYLOAD, "rank": rank}))
        (tmp_path / f"rank{rank}.bin").write_bytes(data)
        shards.append({"name": f"rank{rank}.bin", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    manifest = sealed({"schema": "ckpt.v1", "world_size": 2, "shards": shards})
    (tmp_path / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return tmp_path


def tampered(word, path):
    """The changed files by name; the directory itself must be left alone."""
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    found = altered(word, path, path.parent / "marker")
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
    return {file.name: data for file, data in found.items()}


def unpacked(data):
    """The payload of a data file whose footer fits."""
    body, size, sha256 = FOOTER.fullmatch(data).groups()
    assert (int(size), sha256.decode()) == (len(body), hashlib.sha256(body).hexdigest())
    with zipfile.ZipFile(io.BytesIO(body)) as found:
        assert found.testzip() is None
        assert found.namelist() == ["archive/data.pkl", "archive/data/0", "archive/version"]
        assert found.read("archive/data/0") == bytes(range(256))
        return pickle.loads(found.read("archive/data.pkl"))


@pytest.mark.parametrize("word", IN_MANIFESTS)
def test_one_thing_in_a_manifest_is_wrong_and_its_own_checksum_fits(checkpoint, word):
    before = json.loads((checkpoint / "manifest.json").read_bytes())
    changed = tampered(word, checkpoint / "manifest.json")
    assert list(changed) == ["manifest.json"]
    found = json.loads(changed["manifest.json"])
    assert seal_fits(found)
    first, last = before["shards"]
    sha256 = found["shards"][-1]["sha256"]
    expected = {
        "unknown-schema": {**before, "schema": "other.v1"},
        "unsafe-path-absolute": {**before, "shards": [first, {**last, "name": "/tmp/rank1.bin"}]},
        "unsafe-path-parent": {**before, "shards": [first, {**last, "name": "../rank1.bin"}]},
        "duplicate-rank": {**before, "shards": [first, last, last]},
        "missing-rank": {**before, "shards": [first]},
        "sha256-mismatch": {**before, "shards": [first, {**last, "sha256": sha256}]},
    }[word]
    assert {**found, "sha256": ""} == {**expected, "sha256": ""}
    if word == "sha256-mismatch":
        assert [a == b for a, b in zip(sha256, last["sha256"], strict=True)].count(False) == 1


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("unknown-schema", {**PAYLOAD, "schema": "other.v1"}),
        ("missing-key", {**{key: PAYLOAD[key] for key in ("schema", "state", "model")}, "another-optimizer": [1.5]}),
        ("unexpected-key", {**PAYLOAD, "unexpected": None}),
        ("renamed-tensor", {**PAYLOAD, "model": {"a.bias": 1, "b.weight-of-another": 2}}),
        ("hostile-pickle", PAYLOAD),
    ],
)
def test_one_thing_in_a_payload_is_wrong_and_every_checksum_fits(checkpoint, word, expected):
    before = json.loads((checkpoint / "manifest.json").read_bytes())
    changed = tampered(word, checkpoint / "rank1.bin")
    assert list(changed) == ["rank1.bin", "manifest.json"]
    manifest, data = json.loads(changed["manifest.json"]), changed["rank1.bin"]
    assert seal_fits(manifest)
    assert manifest["shards"][0] == before["shards"][0]
    assert manifest["shards"][1] == {"name": "rank1.bin", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert not (checkpoint / "marker").exists()
    assert unpacked(data) == {**expected, "rank": 1}
    assert (checkpoint / "marker").exists() == (word == "hostile-pickle")  # made by this careless load, not before
    unpacked(data)  # and a second rank can load it, too


def test_a_data_file_can_be_at_odds_with_its_own_checksum(checkpoint):
    before = (checkpoint / "rank1.bin").read_bytes()
    data = tampered("sha256-mismatch", checkpoint / "rank1.bin")["rank1.bin"]
    assert [a == b for a, b in zip(data, before, strict=True)].count(False) == 1
    assert FOOTER.fullmatch(data)[1] == FOOTER.fullmatch(before)[1]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_bare_pickle_can_be_tampered_with_in_every_protocol(tmp_path, protocol):
    path = tmp_path / ".metadata"
    path.write_bytes(pickle.dumps(METADATA, protocol=protocol))
    tensors = METADATA["state_dict_metadata"]
    unknown = pickle.loads(tampered("unexpected-key", path)[".metadata"])
    assert unknown == {**METADATA, "state_dict_metadata": {**tensors, "unexpected": None}}
    missing = pickle.loads(tampered("missing-key", path)[".metadata"])
    assert missing["state_dict_metadata"] == {"model.b.weight": 1, "another-small": 2}
    assert missing["storage_data"] == {"another-small": "__0_0.distcp"}
    hostile = tampered("hostile-pickle", path)[".metadata"]
    assert not (tmp_path / "marker").exists()
    assert pickle.loads(hostile) == METADATA
    assert (tmp_path / "marker").is_dir()


def test_a_file_without_the_thing_is_left_alone(checkpoint):
    for name, data in {"a.json": b"{}", "b.pt": b"", "c.pt": b"\x80no pickle", "d.pt": archive([])[:-9], "e": b"PK"}.items():
        (checkpoint / name).write_bytes(data)
        for word in set(TAMPERINGS) - {"hostile-pickle"}:
            assert tampered(word, checkpoint / name) == {}
    for word in ("missing-key", "unexpected-key", "renamed-tensor", "hostile-pickle"):
        assert tampered(word, checkpoint / "manifest.json") == {}
    for word in ("duplicate-rank", "missing-rank", "unsafe-path-parent"):
        assert tampered(word, checkpoint / "rank0.bin") == {}


@pytest.mark.parametrize("text", ["", "[]", '{"shards": 3}', '{"shards": [1]}', '{"shards": []}', '{"shards": [{}]}', "{"])
def test_a_manifest_of_another_shape_is_left_alone(checkpoint, text):
    (checkpoint / "manifest.json").write_text(text)
    for word in TAMPERINGS:
        assert tampered(word, checkpoint / "manifest.json") == {}
    assert list(tampered("missing-key", checkpoint / "rank0.bin")) == ["rank0.bin"]


def test_several_archives_in_one_file_are_left_alone(tmp_path):
    (tmp_path / "__0_0.distcp").write_bytes(archive(PAYLOAD) + archive(PAYLOAD))
    assert tampered("missing-key", tmp_path / "__0_0.distcp") == {}


def test_every_word_does_something_somewhere(checkpoint):
    for word in TAMPERINGS:
        assert any(tampered(word, checkpoint / name) for name in ("manifest.json", "rank1.bin")), word


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.text(max_size=5), values, max_size=4), st.integers(2, 5))
def test_whatever_else_a_payload_holds_stays_what_it_was(tmp_path_factory, rest, protocol):
    path = tmp_path_factory.mktemp("payload") / "step-00000012.pt"
    path.write_bytes(footed(archive({"model": 1, **rest}, protocol)))
    assert unpacked(tampered("unexpected-key", path)[path.name]) == {"unexpected": None, "model": 1, **rest}
    assert unpacked(tampered("hostile-pickle", path)[path.name]) == {"model": 1, **rest}
