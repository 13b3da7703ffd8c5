"""The content of a file as runs of bytes, worked out from what was written to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.trace import Stretch


@dataclass(frozen=True)
class Piece:
    """A run of bytes of a file: `size_bytes` from `source` in the data file on, or zeros where `source` is negative."""

    size_bytes: int
    source: int


class Edit(Protocol):
    """One write, or a change of length where `data` is None."""

    @property
    def offset(self) -> int:
        """Where the bytes go, or the new length."""

    @property
    def data(self) -> Stretch | None:
        """The bytes."""


def flatten(changes: Iterable[Edit]) -> tuple[Piece, ...]:
    """The content of a file after some writes and changes of length, as runs of bytes from its start to its end."""
    runs: list[tuple[int, int, int]] = []  # start, stop, source or -1; in order, without gaps between them
    for change in changes:
        end = runs[-1][1] if runs else 0
        if change.data is None:
            runs = _clip(runs, 0, change.offset)
            if change.offset > (runs[-1][1] if runs else 0):
                runs.append((runs[-1][1] if runs else 0, change.offset, -1))
            continue
        start, stop = change.offset, change.offset + change.data.size_bytes
        if start == stop:
            continue
        if start > end:
            runs.append((end, start, -1))
        if start >= end:
            runs.append((start, stop, change.data.start))
        else:
            runs = [*_clip(runs, 0, start), (start, stop, change.data.start), *_clip(runs, stop, max(end, stop))]
    return _joined(runs)


def _clip(runs: Sequence[tuple[int, int, int]], start: int, stop: int) -> list[tuple[int, int, int]]:
    kept = []
    for begin, end, source in runs:
        first, last = max(begin, start), min(end, stop)
        if first < last:
            kept.append((first, last, source if source < 0 else source + first - begin))
    return kept


def _joined(runs: Sequence[tuple[int, int, int]]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for start, stop, source in runs:
        before = pieces[-1] if pieces else None
        if before is not None and (source == before.source == -1 or 0 <= before.source == source - before.size_bytes):
            pieces[-1] = Piece(before.size_bytes + stop - start, before.source)
        else:
            pieces.append(Piece(stop - start, source))
    return tuple(pieces)
