"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere. Both go to stderr."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0


class Ticker:
    """Shows how many are done, how many of them fail, the rate, and the time that is left; use it as a context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._console = console
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Ticker:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def part(self, name: str) -> None:
        """The next part begins."""
        self._began = self._said = time.monotonic()
        if self._bar is None:
            self._console.print(name, highlight=False, soft_wrap=True)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=None, note="")

    def tick(self, done: int, failing: int, total: int) -> None:
        """So many are done, so many of them fail, of so many."""
        now = time.monotonic()
        rate = done / max(1e-9, now - self._began)
        note = f"{failing} failing, {60 * rate:.0f}/min"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
        elif now - self._said >= _LINE_EVERY_S:
            self._said = now
            left = (total - done) / rate
            self._console.print(f"  {done} of {total} done, {note}, {left:.0f} s left", highlight=False)
