"""Ranks as child processes that cannot be left behind: each wait has a deadline, each child ends with its parent.

Importing torch takes seconds, so the ranks are forked from the one process that has it. A forked rank is a new process all
the same: the parent never trains, so nothing of a job's state can come from anywhere but the checkpoint. The parent must also
never compute with several threads or run a backward pass before it forks, for a fork takes only one thread along.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import torch._dynamo  # noqa: F401  AdamW's constructor imports it, for a second or more; here, all forked ranks share it

from harness.reference.demo.command import DemoError
from harness.reference.world import World

DEADLINE_S = 120.0
PR_SET_PDEATHSIG = 1
CRASHED = 70


class Processes:
    """Child processes; as a context manager it kills and reaps, by their ids, whatever is left of them at the end.

    Args:
        pids: The children.
        log: The directory with `output-RANK`, what each of them prints.
    """

    def __init__(self, pids: Sequence[int], log: Path) -> None:
        self._codes: dict[int, int | None] = dict.fromkeys(pids)
        self.log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def codes(self) -> list[int | None]:
        """Return the exit code of each child, minus the signal if one killed it, None while it runs."""
        for pid in self._running():
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                self._codes[pid] = os.waitstatus_to_exitcode(status)
        return list(self._codes.values())

    def wait(self, deadline_s: float = DEADLINE_S) -> list[int]:
        """Wait for all children and return their exit codes.

        Raises:
            DemoError: The deadline has passed; they are killed.
        """
        deadline = time.monotonic() + deadline_s
        while None in (codes := self.codes()):
            if time.monotonic() > deadline:
                running = self._running()
                self.kill()
                raise DemoError(f"processes {running} have not ended after {deadline_s:g} s\n{self.output()}")
            time.sleep(0.01)
        return [code for code in codes if code is not None]

    def succeed(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait for all children, and be content with exit code 0 only.

        Raises:
            DemoError: One of them failed or the deadline has passed; the text holds what they printed last.
        """
        codes = self.wait(deadline_s)
        if any(codes):
            raise DemoError(f"exit codes {codes}\n{self.output()}")

    def kill(self) -> None:
        """Kill the children that still run, and wait for their ends."""
        for pid in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._running():
            self._codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def output(self) -> str:
        """Return the last lines that each child has printed."""
        lines = []
        for path in sorted(self.log.glob("output-*")):
            lines += [f"{path.name}: {line}" for line in path.read_text(errors="replace").splitlines()[-6:]]
        return "\n".join(lines)

    def _running(self) -> list[int]:
        return [pid for pid, code in self._codes.items() if code is None]


def fork_ranks(work: Callable[[World], int], ranks: int, log: Path) -> Processes:
    """Fork one process per rank.

    Args:
        work: What a rank does; returns its exit code.
        ranks: Number of ranks; RANK, LOCAL_RANK and WORLD_SIZE are set for each.
        log: Directory that takes what each of them prints.
    """
    log.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()  # else every child would print again what waits in the buffer
    sys.stderr.flush()
    parent, pids = os.getpid(), []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _be_rank(work, World(rank, rank, ranks), log, parent)
        pids.append(pid)
    return Processes(pids, log)


def _be_rank(work: Callable[[World], int], world: World, log: Path, parent: int) -> NoReturn:
    code = CRASHED
    try:
        die_with_parent(parent)
        output = os.open(log / f"output-{world.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(RANK=str(world.rank), LOCAL_RANK=str(world.local_rank), WORLD_SIZE=str(world.world_size))
        code = work(world)
    except BaseException:  # noqa: BLE001  nothing may return from here into the parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, however that ends; it survives an `exec`.

    Args:
        parent: Id that the parent had, or None if it cannot have ended yet.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(CRASHED)  # it has ended before the call
