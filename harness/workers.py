"""Several cases at a time, in processes that end with their parent.

Responsible for: a list of items that are all to be done (`run_all`), and items that are found one after the other and may be
given up (`Pool`). Not responsible for: what is run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from harness.errors import HarnessError
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
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=die_with, initargs=(os.getpid(),)) as pool:
        yield from zip(items, pool.map(task, items), strict=True)


def die_with(parent: int) -> None:
    """Ties this process to its parent: it ends with it, and leaves it to the parent what an interruption means."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides


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
            word, value = "died", HarnessError(f"a process of the harness ended with {running.process.exitcode} and no answer")
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
        except HarnessError as error:
            answers.send(("raised", error))
        except Exception as error:  # noqa: BLE001  whatever it is, it is the harness's own fault and must be seen
            answers.send(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
