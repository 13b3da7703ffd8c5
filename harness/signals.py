"""Signals that wait while this process forks.

Python calls functions of its modules right after a fork, in both processes, and what is raised in these is printed and lost: a
Ctrl-C (or the alarm that ends a budget) that comes then would end nothing. So it is held until the fork is over.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_HELD = (signal.SIGINT, signal.SIGALRM)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Ctrl-C and alarms wait until this is over. A child that is forked meanwhile calls `released`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def released() -> None:
    """What has waited comes now; in a forked child nothing has."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def interrupted_with(code: int) -> None:
    """Goes on unless a program that was waited for was ended by Ctrl-C, which was meant for this process as well.

    Raises:
        KeyboardInterrupt: it was, be it that this process has not heard of it yet.
    """
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
