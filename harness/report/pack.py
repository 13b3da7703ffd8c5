"""The evidence of a night under a size limit: what is kept, in which order, and what is left out, in words.

Responsible for: choosing files of run directories (failing ones first, and of each what explains it before what is merely large),
copying them, and packing them into one archive. Not responsible for: what the runs mean.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.report.exploration import num
from harness.report.stored import StoredRun

LEFT_OUT_FILE = "LEFT-OUT.txt"
DEFAULT_LIMIT = "200MB"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_ORDER = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
# What a tar archive needs for a file beside its content: a header, padding, a long name; the end of the archive.
_TAR_FILE, _TAR_END, _GZIP = 2048, 10240, 64
_LEFT_OUT_BYTES = 64 << 10
_LISTED = 200
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Item:
    """A file that may be kept.

    Attributes:
        source: where it is; `name` what it is called in the archive.
        order: what is kept first sorts first.
        run: the run directory that it belongs to, "" where it is of no run.
        size_bytes: of its content.
    """

    source: Path
    name: str
    order: tuple[int, ...]
    run: str
    size_bytes: int


@dataclass(frozen=True)
class Packed:
    """What was kept, and what was not, with its size in bytes as it counts against the limit."""

    kept: tuple[Item, ...]
    left_out: tuple[Item, ...]
    size_bytes: int


def parse_size(text: str, option: str = "--artifact-limit") -> int:
    """A size such as 200MB or 1.5GiB, in bytes. Raises: UsageError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*([A-Za-z]{0,3})", text.strip())
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match and match[2].lower() in _UNITS else 0
    if size < 1:
        raise UsageError([f"{option} {text}: expected a size such as 200MB, 500kB or 1GiB"])
    return size


def size_text(size_bytes: int) -> str:
    """A size for people."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"


def items_of(runs: Sequence[tuple[StoredRun, str]], documents: Iterable[Path] = ()) -> list[Item]:
    """Everything that may be kept, what comes first first.

    Args:
        runs: run directories, each with its name in the archive.
        documents: results and reports, which are kept before all runs.
    """
    found = [Item(path, path.name, (0,), "", path.stat().st_size) for path in documents]
    for run, name in runs:
        for path in _files(run.path):
            relative = path.relative_to(run.path)
            kind = _kind(relative)
            size = path.lstat().st_size
            # First what explains a failure, then what explains the rest, then what is only large; small before large.
            order = (1 + (kind >= _DATA), _ORDER[run.row.verdict], kind, size) if kind else (1, _ORDER[run.row.verdict], 0, 0)
            found.append(Item(path, f"{name}/{relative.as_posix()}", order, name, size))
    return sorted(found, key=lambda item: (item.order, item.name))


_DATA = 4


def _kind(path: Path) -> int:
    """0: plan and verdict; 1: logs of ranks and supervisor; 2: what was printed; 3: operations; 4: data of checkpoints."""
    if path.name in ("plan.toml", "verdict.json", "baseline.json", "report.html"):
        return 0
    if path.parts[0] == "checkpoints" or path.name == "data.bin":
        return _DATA
    if path.name == "operations.jsonl":
        return 3
    if path.suffix == ".jsonl":
        return 1
    return 2 if path.suffix in (".stdout", ".stderr") else _DATA


def _files(root: Path) -> list[Path]:
    """Regular files only: a link may lead elsewhere, a pipe blocks for ever."""
    found = [Path(here) / name for here, _, names in os.walk(root) for name in names]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def choose(items: Sequence[Item], limit_bytes: int, sizes: Sequence[int]) -> Packed:
    """As many as fit, in their order; one that does not fit keeps no smaller one out.

    Args:
        items: in order.
        limit_bytes: for all together.
        sizes: what each takes.
    """
    kept, left_out, used = [], [], 0
    for item, size in zip(items, sizes, strict=True):
        if used + size <= limit_bytes:
            kept.append(item)
            used += size
        else:
            left_out.append(item)
    return Packed(tuple(kept), tuple(left_out), used)


def left_out_text(packed: Packed, limit_bytes: int) -> str:
    """What was left out, a line per run directory."""
    if not packed.left_out:
        return f"nothing was left out: {num(len(packed.kept), 'file')} within the limit of {size_text(limit_bytes)}\n"
    by_run: dict[str, list[Item]] = {}
    for item in packed.left_out:
        by_run.setdefault(item.run, []).append(item)
    whole = {item.run for item in packed.kept}
    total = sum(item.size_bytes for item in packed.left_out)
    lines = [
        f"{num(len(packed.left_out), 'file')} ({size_text(total)}) left out to stay within the limit of {size_text(limit_bytes)} "
        "(--artifact-limit); plans, verdicts and logs come before data, failing runs before others"
    ]
    for run, members in list(by_run.items())[:_LISTED]:
        size = size_text(sum(item.size_bytes for item in members))
        what = f"{num(len(members), 'file')}, {size}" if run in whole else f"all of it, {size}"
        names = ", ".join(item.name.removeprefix(f"{run}/") for item in members[:3]) + (", …" if len(members) > 3 else "")
        lines.append(f"  {run or 'results'}: {what}: {names}")
    more = len(by_run) - _LISTED
    return "\n".join([*lines, *([f"  and {num(more, 'more run')}"] if more > 0 else [])]) + "\n"


def pack(items: Sequence[Item], file: Path, limit_bytes: int) -> Packed:
    """Writes an archive (gzip) of at most so many bytes.

    Raises:
        UsageError: it cannot be written, or the limit has room for nothing.
    """
    fixed = _TAR_END + _GZIP + (min(_LEFT_OUT_BYTES, limit_bytes // 4))
    sizes = [_compressed_bytes(item) for item in items]
    packed = choose(items, limit_bytes - fixed, sizes)
    if not packed.kept:
        raise UsageError([f"--artifact-limit {size_text(limit_bytes)} has room for no file at all; expected a larger one"])
    text = left_out_text(packed, limit_bytes).encode()[: min(_LEFT_OUT_BYTES, limit_bytes // 4)]
    partial = file.with_name(f"{file.name}.partial")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=6) as archive:
            facts = tarfile.TarInfo(LEFT_OUT_FILE)
            facts.size = len(text)
            archive.addfile(facts, io.BytesIO(text))
            for item in packed.kept:
                archive.add(item.source, item.name, recursive=False)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError([f"cannot write {file}: {error.strerror}"]) from None
    return packed


def _compressed_bytes(item: Item) -> int:
    """At most so many bytes of the archive: the file compressed by itself, and its header."""
    compressor, size = zlib.compressobj(6), 0
    with item.source.open("rb") as opened:
        while piece := opened.read(_CHUNK):
            size += len(compressor.compress(piece))
    return size + len(compressor.flush()) + _TAR_FILE


def copy(items: Sequence[Item], folder: Path, limit_bytes: int) -> Packed:
    """Copies files into a folder, at most so many bytes of them. Raises: UsageError: they cannot be written."""
    packed = choose(items, limit_bytes, [item.size_bytes for item in items])
    try:
        for item in packed.kept:
            target = folder / item.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(item.source, target)
        (folder / LEFT_OUT_FILE).write_text(left_out_text(packed, limit_bytes))
    except OSError as error:
        raise UsageError([f"cannot write below {folder}: {error.strerror}"]) from None
    return packed
