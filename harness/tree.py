"""A directory as data: what each name stands for, in pieces of a trace's data file; built, digested, and compared.

Responsible for: making a real directory hold exactly such a tree, recognising equal ones by content, and saying where a real one
differs. Contents are copied in the kernel where that is possible.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.pieces import Piece


@dataclass(frozen=True)
class Entry:
    """What a name stands for in a state: a `file` of pieces, a `dir`, or a `link` to `target`."""

    kind: str
    mode: int
    pieces: tuple[Piece, ...] = ()
    target: str = ""


Tree = dict[str, Entry]  # path relative to the checkpoint directory → what it is; the directory itself is left out


class Contents:
    """Digests of trees by content, each content read once.

    Args:
        data: the data file of the trace.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._digests: dict[tuple[Piece, ...], str] = {}

    def digest_of(self, tree: Tree) -> str:
        """Equal for two trees exactly if every name stands for the same, byte for byte."""
        text = "\n".join(
            f"{path!r} {entry.kind} {entry.mode:o} {entry.target!r} {self.of(entry.pieces) if entry.kind == 'file' else ''}"
            for path, entry in tree.items()
        )
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def of(self, pieces: tuple[Piece, ...]) -> str:
        """The sha256 of a content (hex)."""
        if pieces not in self._digests:
            digest = hashlib.sha256()
            with self._data.open("rb") as file:
                for block in _blocks(file.fileno(), pieces):
                    digest.update(block)
            self._digests[pieces] = digest.hexdigest()
        return self._digests[pieces]


_COPY_BYTES = 1 << 20
_ZEROS = bytes(_COPY_BYTES)


def _blocks(data: int, pieces: Iterable[Piece]) -> Iterable[bytes]:
    for piece in pieces:
        done = 0
        while done < piece.size_bytes:
            size = min(_COPY_BYTES, piece.size_bytes - done)
            yield _ZEROS[:size] if piece.source < 0 else os.pread(data, size, piece.source + done)
            done += size


def build(tree: Tree, data: Path, root: Path) -> None:
    """Makes a directory hold exactly this state; what is in it goes.

    Raises:
        OSError: a file could not be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    for old in list(root.iterdir()):
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    directories = []
    with data.open("rb") as source:
        for path, entry in tree.items():
            target = root / path
            if entry.kind == "dir":
                target.mkdir()
                directories.append((target, entry.mode))
            elif entry.kind == "link":
                target.symlink_to(entry.target)
            else:
                _write_file(target, source.fileno(), entry)
    for target, mode in reversed(directories):  # last, and the inner ones first: a directory may be read-only
        target.chmod(mode)


def _write_file(target: Path, data: int, entry: Entry) -> None:
    with target.open("wb", buffering=0) as file:
        for piece in entry.pieces:
            if piece.source < 0:
                file.seek(piece.size_bytes, os.SEEK_CUR)
                continue
            done = 0
            while done < piece.size_bytes:
                # In the kernel: the bytes do not come through here.
                done += os.sendfile(file.fileno(), data, piece.source + done, piece.size_bytes - done)
        file.truncate(sum(piece.size_bytes for piece in entry.pieces))
    target.chmod(entry.mode)


def read_tree(root: Path) -> dict[str, tuple[str, int, str]]:
    """A real directory: path → (kind, permission bits, sha256 or target). A file that vanishes meanwhile is left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", 0, str(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", facts.st_mode & 0o7777, "")
        elif path.is_file():
            with path.open("rb") as file:
                found[name] = ("file", facts.st_mode & 0o7777, hashlib.file_digest(file, "sha256").hexdigest())
    return dict(sorted(found.items()))


def difference(tree: Tree, root: Path, data: Path) -> str:
    """Where a real directory is not what was built or traced, in words; "" if it is, byte for byte."""
    expected, found = _described(tree, data), read_tree(root)
    for path in _differing(expected, found):
        return _differs(path, expected.get(path), found.get(path))
    return ""


def differing(tree: Tree, root: Path, data: Path) -> list[str]:
    """The paths that a real directory does not hold as a state does."""
    return _differing(_described(tree, data), read_tree(root))


_Described = dict[str, tuple[str, int, str]]


def _described(tree: Tree, data: Path) -> _Described:
    """A state as `read_tree` describes a directory."""
    contents = Contents(data)
    return {
        path: (entry.kind, entry.mode, entry.target or (contents.of(entry.pieces) if entry.kind == "file" else ""))
        for path, entry in tree.items()
    }


def _differing(expected: _Described, found: _Described) -> list[str]:
    return sorted(path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path))


def _differs(path: str, expected: tuple[str, int, str] | None, found: tuple[str, int, str] | None) -> str:
    if found is None:
        return f"{path} is gone, and no operation that was seen removed it"
    if expected is None:
        return f"{path} is there, and no operation that was seen made it"
    if expected[2] != found[2]:
        return f"{path} holds bytes that no operation that was seen has written (mmap, io_uring, or a process outside the job)"
    return f"{path} is a {found[0]} of mode {found[1]:o}; what was seen made it a {expected[0]} of mode {expected[1]:o}"
