"""Several cases at a time, in processes that end with their parent; and the moment at which all of it ends.

Responsible for: the pool, and for `ended_at`, which ends what is being done when the time is up, here and in the pool.
Not responsible for: what is run in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Generic, TypeVar

from harness.inject import kernel

Item = TypeVar("Item")
Result = TypeVar("Result")


class OutOfTime(BaseException):
    """The time of `ended_at` is up. No error, so that nobody who deals with errors takes it for one."""


# When what this process does is to end (`time.monotonic`).
_ends: list[float] = []


@contextlib.contextmanager
def ended_at(moment: float | None) -> Iterator[None]:
    """Raises `OutOfTime` at that moment (`time.monotonic`; None for never), wherever the program is by then.

    What `run_all` does meanwhile ends at the same moment. To be used in the main thread.
    """
    if moment is None:
        yield
        return
    handler = signal.signal(signal.SIGALRM, _raise)
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(1e-6, moment - time.monotonic()))
    began = time.monotonic()
    _ends.append(moment)
    try:
        yield
    finally:
        _ends.pop()
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, left - (time.monotonic() - began)) if left else 0.0)
        signal.signal(signal.SIGALRM, handler)


def _raise(_signal: int, _frame: object) -> None:
    raise OutOfTime


@dataclass(frozen=True)
class _Numbered(Generic[Item, Result]):
    """A task whose results say whose they are, and which ends when the time is up."""

    task: Callable[[Item], Result]
    end: float | None

    def __call__(self, numbered: tuple[int, Item]) -> tuple[int, Result]:
        with ended_at(self.end):
            return numbered[0], self.task(numbered[1])


def run_all(
    task: Callable[[Item], Result], items: Sequence[Item], jobs: int, *, ordered: bool = True
) -> Iterator[tuple[Item, Result]]:
    """Does a task for each item, `jobs` at a time.

    Args:
        task: what is done.
        items: for which of them.
        jobs: how many at a time; 1 for in this process.
        ordered: whether the results come in the order of the items, or as they are there.

    Yields:
        Each item with its result.

    Raises:
        OutOfTime: the time of `ended_at` is up; what has not been yielded is lost.
    """
    if jobs == 1:
        for item in items:
            yield item, task(item)
        return
    numbered = _Numbered(task, min(_ends, default=None))
    # Forked: this process has no threads and no torch, and the children need nothing but what it holds.
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=_die_with, initargs=(os.getpid(),)) as pool:
        futures = [pool.submit(numbered, one) for one in enumerate(items)]
        try:
            for future in futures if ordered else as_completed(futures):
                number, result = future.result()
                yield items[number], result
        finally:
            for future in futures:
                future.cancel()


def _die_with(parent: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
