"""Progress of long work: a live table on a terminal, plain lines elsewhere. Both go to stderr."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

_LINE_EVERY_S = 10.0
_BAR_WIDTH, _SHOWN_PARTS = 20, 12


@dataclass
class _Row:
    """One part: when it began and ended, how many are done and fail, of how many (0 where that is not known)."""

    name: str
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    done: int = 0
    failing: int = 0
    total: int = 0

    @property
    def rate(self) -> float:
        """Done per second."""
        return self.done / max(1e-9, (self.ended or time.monotonic()) - self.began)


class Ticker:
    """Shows how many are done, how many of them fail, the rate, and the time that is left; use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._rows: list[_Row] = []
        self._live = (
            Live(console=self._console, transient=True, get_renderable=self._table) if self._console.is_terminal else None
        )
        self._said = time.monotonic()

    def __enter__(self) -> Ticker:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def part(self, name: str) -> None:
        """The next part begins."""
        self._said = time.monotonic()
        if self._rows:
            self._rows[-1].ended = self._said
        self._rows.append(_Row(name))
        if self._live is None:
            self._console.print(name, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line that stays, above what is shown."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def tick(self, done: int, failing: int, total: int) -> None:
        """So many are done, so many of them fail, of so many."""
        if not self._rows:
            self._rows.append(_Row("cases"))
        row = self._rows[-1]
        row.done, row.failing, row.total = done, failing, total
        now = time.monotonic()
        if self._live is None and now - self._said >= _LINE_EVERY_S:
            self._said = now
            self._console.print(f"  {done} of {total} done, {_note(row)}", highlight=False)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in ("", "done", "", "failing", "time"):
            table.add_column(name)
        for row in self._rows[-_SHOWN_PARTS:]:
            bar = ProgressBar(row.total or None, row.done, _BAR_WIDTH, pulse=not row.ended) if row.total else ""
            took = (row.ended or time.monotonic()) - row.began
            left = "" if row.ended or not row.total else f", {_note(row)}"
            done = f"{row.done}/{row.total}" if row.total else ""
            table.add_row(row.name, done, bar, str(row.failing) if row.total else "", f"{took:.0f} s{left}")
        return table


def _note(row: _Row) -> str:
    left = (row.total - row.done) / row.rate if row.done else 0.0
    return f"{row.failing} failing, {60 * row.rate:.0f}/min, {left:.0f} s left"
