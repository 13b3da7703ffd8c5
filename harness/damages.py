"""The damages that the files of a checkpoint can suffer at rest, as sentences of `harness.grammar`.

Responsible for: seeing from a file's bytes which regions it consists of, and listing damages of every kind for every file.
Cuts, deletions, exchanges and files of another step are listed without exception (exchanges up to a number of pairs); of bits
and blocks there are too many, so that each region of each file gets a seeded sample of them.
Not responsible for: doing them (`harness.inject.damage`), or what must hold afterwards (`harness.judge`).

Knows the zip archives of `torch.save`, one or many in a file, with or without a line behind them; JSON; safetensors; and pickles.
Anything else is one region. Not covered: two damages at once; tampering that corrects checksums (`harness.inject.tamper`).
"""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.inject.damage import BLOCK_BYTES

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip member: signature, lengths of its name and of its extra field
_MEMBER, _END = b"PK\x03\x04", b"PK\x05\x06"
_END_BYTES = 22
_HEX_DIGEST = re.compile(rb"[0-9a-f]{64}")
_LENGTH_BYTES = 8  # of the number with which a safetensors file begins
_MOST_HEADER_BYTES = 1 << 26


@dataclass(frozen=True)
class Sampling:
    """How much is drawn where not everything is done: bits and blocks per region of a file, pairs of files per checkpoint."""

    flips: int = 5
    zeros: int = 1
    swaps: int = 6


@dataclass(frozen=True)
class Region:
    """A run of bytes of a file, and what it is. Several runs of one file may have one name."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Damage:
    """One damage to the newest checkpoint.

    Attributes:
        sentence: the fault.
        effect: its word.
        file: path below the checkpoint; "" where the checkpoint is one file, or the whole of it is meant.
        what: what becomes of the file, in words that hold for all files like it.
    """

    sentence: str
    effect: str
    file: str
    what: str

    @property
    def text(self) -> str:
        """What is done to which files, with ranks and steps left open."""
        return f"{self.what} {re.sub(r'[0-9]+', '*', self.file) or 'the checkpoint'}"


def list_damages(checkpoint: Path, attempt: int, seed: int, sampling: Sampling | None = None) -> list[Damage]:
    """The damages of a checkpoint, file by file.

    Args:
        checkpoint: the newest one, a file or a directory.
        attempt: the launch before which they are done.
        seed: of the samples.
        sampling: how much is drawn.
    """
    sampling = sampling or Sampling()
    files = _files(checkpoint)
    found = [damage for name, path in files.items() for damage in _of_file(name, path.read_bytes(), seed, sampling)]
    if "" not in files:
        found += _exchanges(sorted(files), random.Random(f"{seed} pairs"), sampling.swaps)
        found += [Damage("delete newest", "delete", "", "deletion of")]
        found += [Damage("replace newest from older", "replace", "", "the content of an older step in")]
    suffix = "" if attempt == 1 else f" attempt {attempt}"
    return [Damage(d.sentence + suffix, d.effect, d.file, d.what) for d in found]


def count_possible(checkpoint: Path) -> int:
    """How many damages of these kinds there are: every length, bit, block and file, and every pair of files."""
    files = _files(checkpoint)
    sizes = [path.stat().st_size for path in files.values()]
    blocks = [-(-size // BLOCK_BYTES) for size in sizes]
    whole = 0 if "" in files else 2
    return sum(9 * size for size in sizes) + sum(blocks) + 2 * len(files) + len(files) * (len(files) - 1) // 2 + whole


def choose(damages: Sequence[Damage], number: int, seed: int) -> list[Damage]:
    """A seeded sample that has something of every kind before it has twice of one."""
    rng = random.Random(f"{seed} choice")
    kinds: dict[str, list[Damage]] = {}
    for damage in rng.sample(list(damages), len(damages)):
        kinds.setdefault(damage.effect, []).append(damage)
    rounds = itertools.zip_longest(*(kinds[effect] for effect in sorted(kinds)))
    return [damage for damage in itertools.chain.from_iterable(rounds) if damage is not None][:number]


def regions_of(data: bytes) -> list[Region]:
    """The regions of a file, in order and without gaps; empty for an empty file."""
    if data.startswith(_MEMBER):
        found = list(_archives(data))
    elif data[:1] in (b"{", b"["):
        found = _json(data, 0)
    elif (length := _safetensors_header(data)) is not None:
        found = [
            Region("header length", 0, _LENGTH_BYTES),
            Region("header", _LENGTH_BYTES, _LENGTH_BYTES + length),
            Region("tensor data", _LENGTH_BYTES + length, len(data)),
        ]
    else:
        found = [Region("pickle" if data[:1] == b"\x80" else "content", 0, len(data))]
    return [region for region in found if region.start < region.stop]


# --- files


def _files(checkpoint: Path) -> dict[str, Path]:
    """Path below the checkpoint → file; the name is empty where the checkpoint is one file."""
    if checkpoint.is_file():
        return {"": checkpoint}
    return {str(path.relative_to(checkpoint)): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}


def _target(name: str) -> str:
    # White space would end the word, and a comma at its end is punctuation; `?` stands for any one character.
    return f"newest/{_word(name)}" if name else "newest"


def _word(name: str) -> str:
    return re.sub(r"\s|,$", "?", name)


def _of_file(name: str, data: bytes, seed: int, sampling: Sampling) -> Iterator[Damage]:
    target, regions = _target(name), regions_of(data)
    yield from _cuts(name, len(data), regions[0].stop if regions else 0)
    by_name: dict[str, list[Region]] = {}
    for region in regions:
        by_name.setdefault(region.name, []).append(region)
    blocks: set[int] = set()
    for what, members in by_name.items():
        rng = random.Random(f"{seed} {name} {what}")
        for place in _places(members, sampling.flips, rng):
            bit = rng.randrange(8)
            said = f" bit {bit}" if bit else ""
            yield Damage(f"flip {target} at byte {place}{said}", "flip", name, f"a flipped bit in the {what} of")
        for place in _places(members, sampling.zeros, rng):
            if place // BLOCK_BYTES not in blocks:
                blocks.add(place // BLOCK_BYTES)
                yield Damage(f"zero {target} at byte {place}", "zero", name, f"a block of zeros over the {what} of")
    yield Damage(f"delete {target}", "delete", name, "deletion of")
    yield Damage(f"replace {target} from older", "replace", name, "the content of an older step in")


def _cuts(name: str, size_bytes: int, header_bytes: int) -> Iterator[Damage]:
    known: set[int] = set()
    cuts = {
        "byte 0": (0, "nothing left of"),
        "byte 1": (1, "one byte left of"),
        f"byte {header_bytes}": (header_bytes, "only the header left of"),
        "50%": (size_bytes // 2, "half left of"),
        "last byte": (size_bytes - 1, "the last byte missing from"),
    }
    for position, (length, what) in cuts.items():
        if length not in known and 0 <= length < size_bytes:
            known.add(length)
            yield Damage(f"truncate {_target(name)} to {position}", "truncate", name, what)


def _places(regions: Sequence[Region], number: int, rng: random.Random) -> list[int]:
    """Different bytes of these regions, every byte as likely as every other."""
    total = sum(region.stop - region.start for region in regions)
    found = []
    for drawn in sorted(rng.sample(range(total), min(number, total))):
        rest = drawn
        for region in regions:
            if rest < region.stop - region.start:
                found.append(region.start + rest)
                break
            rest -= region.stop - region.start
    return found


def _exchanges(names: Sequence[str], rng: random.Random, most: int) -> list[Damage]:
    pairs = list(itertools.combinations(names, 2))
    chosen = sorted(rng.sample(pairs, most)) if len(pairs) > most else pairs
    return [Damage(f"swap {_target(a)} with {_word(b)}", "swap", a, f"{_general(b)} in the place of") for a, b in chosen]


def _general(name: str) -> str:
    return re.sub(r"[0-9]+", "*", name)


# --- regions


def _archives(data: bytes) -> Iterator[Region]:
    """The regions of zip archives that stand one behind the other, and of what comes after them."""
    start = 0
    while data.startswith(_MEMBER, start):
        end = data.find(_END, start)
        stop = min(len(data), end + _END_BYTES) if end >= 0 else len(data)
        yield from _archive(data[start:stop], start)
        start = stop
    if start < len(data):
        yield from _tail(data, start)


def _archive(data: bytes, base: int) -> list[Region]:
    """The regions of one archive; a single one where its directory and its members do not fit."""
    whole = [Region("content", base, base + len(data))]
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members, directory = sorted(archive.infolist(), key=lambda member: member.header_offset), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error):
        return whole
    found: list[Region] = []
    place = 0
    for member in members:
        if not place <= member.header_offset <= directory - _LOCAL_HEADER.size:
            return whole
        _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(data, member.header_offset)
        start = member.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
        stop = start + member.compress_size
        found += [Region("archive headers", base + place, base + start)]
        found += [Region(_member_name(member.filename), base + start, base + stop)]
        place = stop
    if not place <= directory <= len(data):
        return whole
    found += [Region("archive headers", base + place, base + directory)]
    return [*found, Region("archive directory", base + directory, base + len(data))]


def _member_name(path: str) -> str:
    if path.endswith("data.pkl"):
        return "pickle"
    return "tensor data" if re.search(r"(^|/)data/[0-9]+$", path) else "archive records"


def _tail(data: bytes, start: int) -> Iterator[Region]:
    """What stands behind the archives: a line with a checksum, perhaps."""
    checksum = _HEX_DIGEST.search(data, start)
    if checksum is None:
        yield Region("tail", start, len(data))
        return
    yield Region("footer", start, checksum.start())
    yield Region("checksum", *checksum.span())
    yield Region("footer", checksum.end(), len(data))


def _json(data: bytes, place: int) -> list[Region]:
    found = []
    for checksum in _HEX_DIGEST.finditer(data):
        found += [Region("text", place, checksum.start()), Region("checksum", *checksum.span())]
        place = checksum.end()
    return [*found, Region("text", place, len(data))]


def _safetensors_header(data: bytes) -> int | None:
    """The length of the header of a safetensors file, None if it is no such file."""
    if len(data) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if not 2 <= length <= min(len(data) - _LENGTH_BYTES, _MOST_HEADER_BYTES):
        return None
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    except ValueError:
        return None
    return length if isinstance(header, dict) else None
