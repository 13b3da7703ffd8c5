"""Several cases at a time, in processes that end with their parent.

Responsible for: the pool. Not responsible for: what is run in it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from harness.inject import kernel

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(task: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Result]]:
    """Does a task for each item, `jobs` at a time.

    Yields:
        Each item with its result, in the order of the items.
    """
    if jobs == 1:
        for item in items:
            yield item, task(item)
        return
    # Forked: this process has no threads and no torch, and the children need nothing but what it holds.
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=_die_with, initargs=(os.getpid(),)) as pool:
        yield from zip(items, pool.map(task, items), strict=True)


def _die_with(parent: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
