"""What can be known of a checkpoint directory without torch: its files by content, and which checkpoints are in it.

Responsible for: snapshots (path → size and sha256) and finding the newest committed checkpoint by name. A checkpoint is a
top-level entry: a file, or a directory that holds a `manifest.json`; where no directory does (a foreign trainer, which commits in
some other way), a directory whose name has a number and that holds files. Its number is the last run of digits in its name; what
is called the best is never the newest beside another one.
Not responsible for: whether its content is good; only loading it tells.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.store import Files, RunDirectory, read_records

_PIECE_BYTES = 1 << 20
MANIFEST = "manifest.json"
_MOST_POINTER_BYTES = 512


@dataclass(frozen=True, order=True)
class Entry:
    """A checkpoint by its name; `number` is 0 where the name has no digits."""

    number: int
    name: str


def top_level(path: str) -> str:
    """The first name of a path relative to the checkpoint directory: the checkpoint that a file belongs to."""
    return path.removeprefix("./").split("/", 1)[0]


def snapshot(root: Path, below: str = "") -> Files:
    """All files below `root/below`, by content; keys are relative to `root`. A file that vanishes meanwhile is left out.

    Raises:
        OSError: a file cannot be read.
    """
    start = root / below if below else root
    if start.is_file():
        return {below: _content(start)}
    found: Files = {}
    for directory, _, names in os.walk(start):
        for name in names:
            path = Path(directory, name)
            try:
                found[str(path.relative_to(root))] = _content(path)
            except FileNotFoundError:
                continue
    return dict(sorted(found.items()))


def listing(directory: RunDirectory, root: Path) -> dict[str, object]:
    """The fields of a `files` record: `files`, and `heads` of those that have grown.

    A head is as many bytes as the file had when it was part of a commit, or when an attempt began: a checkpoint that is appended
    to stays what it was.

    Args:
        directory: of the case, whose logs say what was committed.
        root: the checkpoint directory.

    Raises:
        OSError: a file cannot be read.
    """
    files = snapshot(root)
    known: dict[str, set[int]] = {}
    for folder in directory.attempts():
        for record in read_records(folder / "attempt.jsonl")[0]:
            if record["event"] == "committed" or (record["event"] == "files" and record["moment"] == "begin"):
                for path, (size, _) in record["files"].items():
                    known.setdefault(path, set()).add(size)
    heads: dict[str, list[tuple[int, str]]] = {}
    for path, (length, _) in files.items():
        shorter = sorted(size for size in known.get(path, ()) if size < length)
        if shorter and (found := _heads(root / path, shorter)):
            heads[path] = found
    return {"files": files, "heads": heads}


def _heads(path: Path, sizes: Sequence[int]) -> list[tuple[int, str]]:
    """The digests of so many bytes each, in ascending order, in one pass; none of what is no file."""
    if path.is_symlink() or not path.is_file():
        return []
    digest, found, place = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        for size in sizes:
            while place < size and (piece := file.read(min(_PIECE_BYTES, size - place))):
                digest.update(piece)
                place += len(piece)
            found.append((size, digest.hexdigest()))
    return found


def _content(path: Path) -> tuple[int, str]:
    if path.is_symlink():
        target = os.fsencode(path.readlink())
        return len(target), "link:" + hashlib.sha256(target).hexdigest()
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        return 0, f"special:{stat.S_IFMT(mode):o}"  # opening a pipe would wait for its other end
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def is_pointer(root: Path, name: str) -> bool:
    """Whether a top-level entry is a link, or a few bytes that name another: it says which checkpoint counts, and is none."""
    path = root / name
    try:
        if path.is_symlink():
            return True
        if not path.is_file() or path.stat().st_size > _MOST_POINTER_BYTES:
            return False
        words = set(re.split(r"[\s\"':,{}\[\]/]+", path.read_text(encoding="utf-8"))) - {""}
        others = {entry.name for entry in root.iterdir()} - {name}
    except (OSError, UnicodeDecodeError):
        return False
    numbers = {str(number_of(other)) for other in others if number_of(other)}
    return bool(words & others) or (len(words) == 1 and bool(words & numbers))


def committed_entries(root: Path) -> list[Entry]:
    """The checkpoints that look committed, oldest first."""
    paths = (
        [path for path in root.iterdir() if not path.name.endswith(".tmp") and not path.name.startswith(".")]
        if root.is_dir()
        else []
    )
    files = [path for path in paths if path.is_file()]
    folders = [path for path in paths if (path / MANIFEST).is_file()]
    if not folders:
        folders = [path for path in paths if number_of(path.name) and any(path.rglob("*.*"))]
    return sorted((Entry(number_of(path.name), path.name) for path in [*files, *folders]), key=lambda entry: age_of(entry.name))


def age_of(name: str) -> tuple[bool, int, str]:
    """By what checkpoints are ordered, the oldest first; the best one by some measure counts as older than all others."""
    return not is_best(name), number_of(name), name


def is_best(name: str) -> bool:
    """Whether a checkpoint is called the best: it is kept for what it scores, not for how new it is."""
    return re.search(r"(^|[^a-z])best", name, re.IGNORECASE) is not None


def number_of(name: str) -> int:
    """The number in a checkpoint's name, 0 if there is none."""
    digits = re.findall(r"\d+", name)
    return int(digits[-1]) if digits else 0
