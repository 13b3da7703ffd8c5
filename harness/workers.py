"""Several cases at a time, in processes that end with their parent; and the moment at which all of it ends.

Responsible for: a list of items that are all to be done (`run_all`), items that are found one after the other and may be given up
(`Pool`), and `ended_at`, which ends what is being done when the time is up, here and in the pool. Not responsible for: what runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from harness import signals
from harness.errors import HarnessError
from harness.inject import kernel

Item = TypeVar("Item")
Result = TypeVar("Result")


class OutOfTime(BaseException):
    """The time of `ended_at` is up. No error, so that nobody who deals with errors takes it for one."""


_AGAIN_S = 0.01
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
    handler, hook = signal.signal(signal.SIGALRM, _raise), sys.unraisablehook
    sys.unraisablehook = partial(_unheard, hook)
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(1e-6, moment - time.monotonic()))
    began = time.monotonic()
    _ends.append(moment)
    try:
        yield
    finally:
        _ends.pop()
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, left - (time.monotonic() - began)) if left else 0.0)
        signal.signal(signal.SIGALRM, handler)


def _raise(_signal: int, _frame: object) -> None:
    raise OutOfTime


def _unheard(hook: Callable[[Any], object], lost: Any) -> None:
    """What was raised while an object was being removed is printed by Python and ends nothing: the end is tried again."""
    if issubclass(lost.exc_type, OutOfTime):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        hook(lost)


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
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=die_with, initargs=(os.getpid(),)) as pool:
        with signals.held():  # with the first one all processes are forked
            futures = [pool.submit(numbered, one) for one in enumerate(items)]
        try:
            for future in futures if ordered else as_completed(futures):
                number, result = future.result()
                yield items[number], result
        finally:
            for future in futures:
                future.cancel()


def die_with(parent: int) -> None:
    """Ties this process to its parent: it ends with it, and leaves it to the parent what an interruption means."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signals.released()


class DiedError(HarnessError):
    """A process ended without an answer: somebody has killed it, or the machine was out of memory."""


def _died_text(code: int) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return (
        f"a process of the harness {how} before it had answered: somebody has killed it, or this machine was out of memory; "
        "fewer cases at a time (--jobs) need less"
    )


@dataclass
class _Running:
    process: BaseProcess
    answers: Connection


class Pool:
    """Functions in processes of their own: each is forked for its item and ends with it, so that nothing piles up in memory.

    Args:
        say: is told what such a function says.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._context = get_context("fork")  # this process has no torch, and the children need nothing but what it holds
        self._running: dict[Any, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, key: Any, function: Callable[..., Any], *arguments: Any, says: bool = False) -> None:
        """Starts one.

        Args:
            key: by which its answer is known.
            function: what it does; its result is sent back by pickle.
            arguments: of it.
            says: whether it takes, last, a function that is told what to say.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_child, args=(theirs, ours, os.getpid(), function, arguments, says), daemon=True)
        with signals.held():
            process.start()
            theirs.close()
            self._running[key] = _Running(process, ours)

    def wait(self, timeout_s: float) -> list[tuple[Any, Any]]:
        """Those that have answered, with their answers; waits for one at most so long.

        Raises:
            HarnessError: what a function raised; one that died without an answer is one, too.
        """
        if not self._running:
            return []
        by_connection = {running.answers: key for key, running in self._running.items()}
        done: list[tuple[Any, Any]] = []
        for answers in wait(list(by_connection), max(0.0, timeout_s)):
            key = by_connection[answers]  # type: ignore[index]
            word, value = self._hear(key)
            if word == "say":
                self._say(value)
            elif word == "done":
                done.append((key, value))
            else:
                raise value
        return done

    def _hear(self, key: Any) -> tuple[str, Any]:
        running = self._running[key]
        try:
            word, value = running.answers.recv()
        except EOFError:
            running.process.join()
            word, value = "died", DiedError(_died_text(running.process.exitcode or 0))
        if word != "say":
            running.answers.close()
            running.process.join()
            del self._running[key]
        return word, value

    def end(self) -> list[Any]:
        """Ends all that still run, and says which; what they started ends with them."""
        cut = list(self._running)
        for running in self._running.values():
            running.process.kill()
        for running in self._running.values():
            running.process.join()
            running.answers.close()
        self._running.clear()
        return cut


def _child(
    answers: Connection, theirs: Connection, parent: int, function: Callable[..., Any], arguments: tuple[Any, ...], says: bool
) -> None:
    die_with(parent)
    theirs.close()
    more = (lambda text: answers.send(("say", text)),) if says else ()
    with contextlib.suppress(BrokenPipeError):
        try:
            answers.send(("done", function(*arguments, *more)))
        except (HarnessError, OSError) as error:
            answers.send(("raised", error))
        except Exception as error:  # noqa: BLE001  whatever it is, it is the harness's own fault and must be seen
            answers.send(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
