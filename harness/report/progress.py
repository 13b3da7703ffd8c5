"""Progress of long work: a live table on a terminal, plain lines elsewhere. Both go to stderr."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_LINE_EVERY_S = 10.0
_DRAWN_EVERY_S = 0.25
_BAR_WIDTH, _SHOWN_PARTS = 20, 12
# Columns of a terminal from which on there is room for more than the least; lines of it that the rows leave free.
_WITH_BAR, _WITH_RATE, _OTHER_LINES = 100, 70, 3


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
        # The library's own refreshing tears what is printed at the same moment: its size of the table is then another one.
        self._live = (
            Live(console=self._console, transient=True, auto_refresh=False, get_renderable=self._table)
            if self._console.is_terminal
            else None
        )
        self._drawing = threading.RLock()
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick_on, daemon=True)
        self._said = time.monotonic()

    def __enter__(self) -> Ticker:
        if self._live is not None:
            self._live.start()
            self._clock.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._over.set()
            self._clock.join()
            self._live.stop()

    def _tick_on(self) -> None:
        """Draws the table anew, so that its times go on while nothing is done."""
        assert self._live is not None
        while not self._over.wait(_DRAWN_EVERY_S):
            with self._drawing:
                self._live.refresh()

    def part(self, name: str) -> None:
        """The next part begins."""
        self._said = time.monotonic()
        with self._drawing:
            if self._rows:
                self._rows[-1].ended = self._said
            self._rows.append(_Row(name))
        if self._live is None:
            self._console.print(name, highlight=False, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Something that is worth a line of its own, above the table."""
        with self._drawing:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line that stays, above what is shown."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def tick(self, done: int, failing: int, total: int) -> None:
        """So many are done, so many of them fail, of so many."""
        if not self._rows:
            self._rows.append(_Row("cases"))
        row = self._rows[-1]
        with self._drawing:
            row.done, row.failing, row.total = done, failing, total
        now = time.monotonic()
        if self._live is None and now - self._said >= _LINE_EVERY_S:
            self._said = now
            self._console.print(f"  {done} of {total} done, {_note(row)}", highlight=False)

    def _table(self) -> Table:
        """One line for each part, however narrow the terminal is: first the bar is left out, then the rate, and names are cut."""
        width = self._console.width
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
        wanted = {
            "done": True,
            "": width >= _WITH_BAR,
            "failing": True,
            "per min": width >= _WITH_RATE,
            "time": True,
            "left": True,
        }
        for name in filter(wanted.get, wanted):
            table.add_column(name, no_wrap=True, justify="left" if name == "" else "right")
        for row in self._rows[-min(_SHOWN_PARTS, max(1, self._console.height - _OTHER_LINES)) :]:
            cells = dict(zip(wanted, _cells(row), strict=True))
            table.add_row(Text(row.name), *(cell for name, cell in cells.items() if wanted[name]))
        return table


def _cells(row: _Row) -> tuple[RenderableType, ...]:
    """How many are done, a bar, how many fail, how many a minute, how long it takes, and how much longer."""
    took = f"{(row.ended or time.monotonic()) - row.began:.0f} s"
    if not row.total:
        return "", "", "", "", took, ""
    bar = ProgressBar(row.total, row.done, _BAR_WIDTH)
    left = "" if row.ended or not row.done else f"{_left_s(row):.0f} s"
    return f"{row.done}/{row.total}", bar, str(row.failing), f"{60 * row.rate:.0f}", took, left


def _note(row: _Row) -> str:
    return f"{row.failing} failing, {60 * row.rate:.0f}/min, {_left_s(row):.0f} s left"


def _left_s(row: _Row) -> float:
    return (row.total - row.done) / row.rate if row.done else 0.0
