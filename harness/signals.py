"""Ctrl-C is not lost, whenever it comes.

Python calls functions of its modules right after a fork, in both processes, and what is raised in these is printed and lost: a
Ctrl-C (or the alarm that ends a budget) that comes then would end nothing. So it is held until the fork is over. What is raised
in a finalizer, or in a callback of the garbage collector such as hypothesis has one, is lost too: it is remembered.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

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


@contextlib.contextmanager
def remembered() -> Iterator[Callable[[], None]]:
    """Ctrl-C interrupts as ever, and where that was lost, the function that is given interrupts when it is called.

    Does nothing outside of the main thread, and where somebody else answers Ctrl-C, or it is ignored.
    """
    asked: list[int] = []

    def answer(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.default_int_handler(number, frame)

    def again() -> None:
        if asked:
            raise KeyboardInterrupt

    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield again
        return
    signal.signal(signal.SIGINT, answer)
    try:
        yield again
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted_with(code: int) -> None:
    """Goes on unless a program that was waited for was ended by Ctrl-C, which was meant for this process as well.

    Raises:
        KeyboardInterrupt: it was, be it that this process has not heard of it yet.
    """
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
