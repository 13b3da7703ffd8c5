"""The errors that the reference trainer raises on purpose."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, or cannot be loaded. The text names the file, what was expected, what was found."""


class RefusalError(CheckpointError):
    """The trainer declines to start: going on would silently lose or corrupt training. Exit code 3."""


def mismatch(what: str, path: object, expected: object, found: object) -> CheckpointError:
    """Word a `CheckpointError` in the one form that all of them share.

    Args:
        what: The problem in a few fixed words, for example `sha256 mismatch on rank 1`.
        path: The file that it was seen in.
        expected: What should have been there.
        found: What was there.
    """
    return CheckpointError(f"{what}: {path}: expected {expected}, found {found}")


def one_line(error: BaseException) -> str:
    """Return an error as one line: its type unless it is a `CheckpointError`, and its text without line breaks."""
    text = " ".join(str(error).split())
    return text if isinstance(error, CheckpointError) else f"{type(error).__name__}: {text}"
