"""Which damages a checkpoint can suffer: regions found in the bytes, samples that repeat, and sentences that hit."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import zipfile
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.damages import Sampling, choose, count_possible, list_damages, regions_of
from harness.grammar import parse
from harness.inject.damage import apply

FOOTER = b"\nckpt.v1 size=00000000000000000100 sha256=" + b"0123456789abcdef" * 4 + b"\n"


def archive(tensor=b"t" * 500):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
        made.writestr("archive/byteorder", b"little")
        made.writestr("archive/data/0", tensor)
    return file.getvalue()


def safetensors(tensor=b"t" * 500):
    header = json.dumps({"a": {"dtype": "U8", "shape": [len(tensor)], "data_offsets": [0, len(tensor)]}}).encode()
    return len(header).to_bytes(8, "little") + header + tensor


MANIFEST = json.dumps({"step": 8, "sha256": "ab" * 32}).encode()


def named(data):
    """Region name → the bytes of that name, together."""
    found = {}
    for region in regions_of(data):
        found[region.name] = found.get(region.name, b"") + data[region.start : region.stop]
    return found


def covers(data):
    regions = regions_of(data)
    edges = [0, *(region.stop for region in regions)]
    return [(r.start, r.stop) for r in regions] == list(itertools.pairwise(edges)) and edges[-1] == len(data)


# --- regions


def test_the_regions_of_an_archive_with_a_line_behind_it():
    found = named(archive() + FOOTER)
    assert found["tensor data"] == b"t" * 500
    assert found["pickle"] == pickle.dumps({"a": 1})
    assert found["archive records"] == b"little"
    assert found["archive headers"].count(b"PK\x03\x04") == 3
    assert found["archive directory"].count(b"PK\x01\x02") == 3
    assert found["checksum"] == b"0123456789abcdef" * 4
    assert found["footer"] == FOOTER.replace(found["checksum"], b"")


def test_archives_that_stand_one_behind_the_other_are_all_looked_into():
    data = archive(b"a" * 9) + archive(b"b" * 9)
    assert named(data)["tensor data"] == b"a" * 9 + b"b" * 9
    assert covers(data)


def test_the_regions_of_a_manifest():
    assert named(MANIFEST) == {"text": MANIFEST.replace(b"ab" * 32, b""), "checksum": b"ab" * 32}


def test_the_regions_of_safetensors():
    found = named(safetensors())
    assert list(found) == ["header length", "header", "tensor data"]
    assert found["tensor data"] == b"t" * 500
    assert json.loads(found["header"])["a"]["dtype"] == "U8"


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", []),
        (b"just text", ["content"]),
        (pickle.dumps([1]), ["pickle"]),
        (b"PK\x03\x04 and nothing of an archive", ["content"]),
        (b"\x05\x00\x00\x00\x00\x00\x00\x00no js", ["content"]),
    ],
)
def test_what_is_nothing_of_that_is_one_region(data, names):
    assert [region.name for region in regions_of(data)] == names


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([archive(), archive() + FOOTER, archive() * 2, safetensors(), MANIFEST, b"{}", b"x"]), st.data())
def test_regions_leave_no_gap_whatever_the_bytes_are(data, draw):
    place = draw.draw(st.integers(0, len(data)))
    other = draw.draw(st.binary(max_size=8))
    assert covers(data[:place] + other + data[place + len(other) :])


# --- damages


@pytest.fixture
def root(tmp_path):
    """Two committed checkpoints: two shards and a manifest each."""
    for step in (4, 8):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        for rank in range(2):
            (folder / f"rank{rank}.bin").write_bytes(archive(bytes([65 + step, rank]) * 5000) + FOOTER)
        (folder / "manifest.json").write_bytes(MANIFEST.replace(b"8", b"%d" % step))
    return tmp_path


def newest(root):
    return root / "step-00000008"


def test_every_kind_of_damage_is_listed_for_every_file(root):
    damages = list_damages(newest(root), 1, 0)
    files = {"rank0.bin", "rank1.bin", "manifest.json"}
    for effect in ("truncate", "flip", "zero", "delete", "replace"):
        assert files <= {damage.file for damage in damages if damage.effect == effect}
    swaps = [damage.sentence for damage in damages if damage.effect == "swap"]
    assert len(swaps) == 3
    assert "swap newest/rank0.bin with rank1.bin" in swaps
    cuts = Counter(damage.file for damage in damages if damage.effect == "truncate")
    assert cuts == {"rank0.bin": 5, "rank1.bin": 5, "manifest.json": 5}
    assert len({damage.sentence for damage in damages}) == len(damages)


def test_every_sentence_is_canonical_and_hits_its_file(root):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for damage in list_damages(newest(root), 1, 0):
        fault = parse(damage.sentence)
        assert str(fault) == damage.sentence
        hit = apply(fault, root)
        assert hit
        assert all(item.path.startswith("step-00000008/") for item in hit)
        assert not all(item.unchanged for item in hit)
        if damage.file:
            assert hit[0].path == f"step-00000008/{damage.file}"
        newest(root).mkdir(exist_ok=True)
        for path, data in before.items():
            path.write_bytes(data)


def test_flips_fall_into_the_region_that_they_name(root):
    data = (newest(root) / "rank0.bin").read_bytes()
    for damage in list_damages(newest(root), 1, 3):
        if damage.effect == "flip" and damage.file == "rank0.bin":
            place = parse(damage.sentence).position.byte
            region = next(region for region in regions_of(data) if region.start <= place < region.stop)
            assert damage.what == f"a flipped bit in the {region.name} of"


def test_the_sample_is_that_of_its_seed_and_as_large_as_asked_for(root):
    some = list_damages(newest(root), 1, 7, Sampling(flips=3, zeros=2, swaps=1))
    assert some == list_damages(newest(root), 1, 7, Sampling(flips=3, zeros=2, swaps=1))
    assert some != list_damages(newest(root), 1, 8, Sampling(flips=3, zeros=2, swaps=1))
    flips = Counter((damage.file, damage.what) for damage in some if damage.effect == "flip")
    assert set(flips.values()) == {3}
    assert sum(damage.effect == "swap" for damage in some) == 1


def test_a_checkpoint_of_one_file_has_no_names_below_it(tmp_path):
    path = tmp_path / "step-00000008.pt"
    path.write_bytes(archive())
    damages = list_damages(path, 2, 0)
    assert "delete newest attempt 2" in [damage.sentence for damage in damages]
    assert not any("/" in damage.sentence or damage.effect == "swap" for damage in damages)
    assert all(damage.sentence.endswith(" attempt 2") for damage in damages)
    assert {damage.text.rpartition(" of ")[2] for damage in damages if damage.effect == "flip"} == {"the checkpoint"}


def test_names_that_a_sentence_cannot_hold_are_written_with_a_pattern(tmp_path):
    folder = tmp_path / "step-00000008"
    folder.mkdir()
    (folder / "a shard,").write_bytes(b"xyz")
    damages = list_damages(folder, 1, 0)
    assert "delete newest/a?shard?" in [damage.sentence for damage in damages]


def test_an_empty_file_has_nothing_to_cut_or_flip(tmp_path):
    folder = tmp_path / "step-00000008"
    folder.mkdir()
    (folder / "empty").write_bytes(b"")
    assert [damage.effect for damage in list_damages(folder, 1, 0)] == ["delete", "replace", "delete", "replace"]


def test_what_exists_is_counted_in_full(tmp_path):
    folder = tmp_path / "step-00000008"
    folder.mkdir()
    (folder / "a").write_bytes(b"x" * 5000)
    (folder / "b").write_bytes(b"x")
    # lengths and bits; blocks; deletion and older content of each file; one pair; both of the whole
    assert count_possible(folder) == 9 * 5001 + 3 + 4 + 1 + 2
    assert count_possible(folder / "b") == 9 + 1 + 2


def test_ranks_and_steps_are_left_open_in_what_is_said(root):
    texts = {damage.text for damage in list_damages(newest(root), 1, 0)}
    assert "a flipped bit in the tensor data of rank*.bin" in texts
    assert "rank*.bin in the place of rank*.bin" in texts
    assert "deletion of the checkpoint" in texts
    assert not any("rank0" in text or "rank1" in text for text in texts)


def test_a_choice_has_something_of_every_kind_first(root):
    damages = list_damages(newest(root), 1, 0)
    chosen = choose(damages, 6, 1)
    assert {damage.effect for damage in chosen} == {"truncate", "flip", "zero", "delete", "swap", "replace"}
    assert chosen == choose(damages, 6, 1)
    assert set(choose(damages, 10_000, 1)) == set(damages)
