"""Cold launch: the keeper as a program of its own, which executes a command: one per rank, or one that makes the ranks.

Responsible for: starting that program. What it does afterwards is the same as in a warm launch.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from harness import signals
from harness.errors import LaunchError
from harness.launch.connection import Connection
from harness.launch.keeper import Keeper

# A socket's name has room for 107 bytes; `multiprocessing` and torch put up to 40 behind the directory for temporary files.
_LONGEST = 64


@dataclass(frozen=True)
class ColdLaunch:
    """Starts a fresh keeper for every attempt.

    Attributes:
        temporary: where its processes put temporary files, so that what killed ones leave goes with the session; None for where
            the harness puts its own.
        forked: the keeper is a fork of this process, which must have no second thread: a third of a second less per attempt.
    """

    temporary: Path | None = None
    forked: bool = False

    def connect(self) -> Connection:
        """A connection to a new keeper.

        Raises:
            LaunchError: the interpreter of the harness cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if self.forked:
                return Connection(ours, _fork_keeper(ours, theirs, self._environment()))
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "harness.launch.keeper", str(theirs.fileno())],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                ours.close()
                raise LaunchError(f"cannot start {sys.executable}: {error}") from None
        return Connection(ours, process)

    def _environment(self) -> dict[str, str] | None:
        if self.temporary is None or len(os.fsencode(self.temporary)) > _LONGEST:
            return None
        try:
            self.temporary.mkdir(exist_ok=True)
        except OSError:  # the session has none
            return None
        return {**os.environ, "TMPDIR": str(self.temporary)}


@dataclass
class _Forked:
    """A forked keeper, to be waited for."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("keeper", timeout or 0.0)
            time.sleep(0.001)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _fork_keeper(ours: socket.socket, theirs: socket.socket, environment: dict[str, str] | None) -> _Forked:
    with signals.held():
        pid = os.fork()
        if pid == 0:
            _keep(ours, theirs, environment)
    return _Forked(pid)


def _keep(ours: socket.socket, theirs: socket.socket, environment: dict[str, str] | None) -> NoReturn:
    """In the forked copy: what `python -m harness.launch.keeper` does; never returns into the code of whoever asked."""
    try:
        ours.close()  # or this process would never see that the supervisor is gone
        os.setsid()
        signals.released()
        os.environ.update(environment or {})
        Keeper(theirs).run()
    except BaseException:  # noqa: BLE001  a forked copy must never run on, whatever happened
        traceback.print_exc()
    finally:
        os._exit(0)
