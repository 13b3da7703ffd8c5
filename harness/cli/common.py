"""What the commands share: where results go, found out before hours of work, and the exit code of a verdict."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from harness.oracle.verdict import Verdict

EXITS = {"PASS": EXIT_PASS, "FAIL": EXIT_FAIL, "INCONCLUSIVE": EXIT_INCONCLUSIVE}


def exit_code(verdict: Verdict) -> int:
    """What the process ends with for this verdict."""
    return EXITS[verdict.outcome]


@contextlib.contextmanager
def new_folder(out: Path, name: str) -> Iterator[Path]:
    """A new folder: the name, numbered where it is taken. It is removed again where nothing was put into it."""
    for number in itertools.count(1):
        path = out / (name if number == 1 else f"{name}.{number}")
        try:
            path.mkdir(parents=True)  # made at once: another command may look for a free name at this moment
            break
        except FileExistsError:
            continue
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def make_writable(folder: Path) -> None:
    """Makes the folder, once all that was asked for is known to be right."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError([_cannot(folder, error.strerror)]) from None


def no_folder(folder: Path) -> list[str]:
    """Why no folder can be made there, and nothing in it; found without leaving anything behind."""
    place = next((path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path)), Path("/"))
    try:
        if not place.is_dir():
            return [_cannot(folder, f"{place} is no directory")]
        with tempfile.TemporaryFile(dir=place):
            return []
    except OSError as error:
        return [_cannot(folder, error.strerror)]


def _cannot(folder: Path, why: str | None) -> str:
    return f"cannot write to {folder}: {why}; expected a directory for run directories (--out)"


def no_place_for(file: Path | None, out: Path | None = None) -> list[str]:
    """Why a result cannot be written to that file; said before hours of work, and found without leaving anything behind.

    `out` is a folder that will be made by then.
    """
    if file is None:
        return []
    folder = file.absolute().parent
    try:
        if not folder.is_dir():
            will_be = out is not None and folder == out.absolute()
            return [] if will_be else [f"cannot write {file}: there is no directory {folder}"]
        if not file.exists():
            with tempfile.TemporaryFile(dir=folder):
                return []
        if file.is_dir() or not os.access(file, os.W_OK):
            return [f"cannot write {file}: it is {'a directory' if file.is_dir() else 'read-only'}; expected a file"]
    except OSError as error:
        return [f"cannot write {file}: {error.strerror}; expected a file in a writable directory"]
    return []


def write(path: Path, text: str) -> None:
    """Writes a result; leaves no part of a new file behind. Raises: UsageError if it cannot be written."""
    new = not path.exists()
    try:
        # A path on disk need not be UTF-8, and stands in texts all the same.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        if new:  # a part of it would be taken for all of it by whoever looks for the file
            with contextlib.suppress(OSError):
                path.unlink()
        raise UsageError([f"cannot write {path}: {error.strerror}"]) from None
