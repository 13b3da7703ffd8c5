"""Warm launch: ranks forked from the warm server, in milliseconds instead of the seconds that importing torch takes.

Responsible for: one server per session, started by whoever needs it first (under a file lock, since the workers of a
test session race for it) and shared by all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from harness.errors import LaunchError, UsageError
from harness.launch.connection import Connection

# What any script of a user's is run by.
SCRIPT_MODULES = ("harness.probe.run_script", "torch", "torch.distributed", "torch._dynamo")
# What the reference trainer, and most trainers, end up importing; measured with `sys.modules` after a run.
MODULES = (
    "harness.probe.train_reference",
    "harness.reference.single",
    "harness.reference.sharded",
    "harness.reference.dcp_async",  # and with it dcp
    "harness.reference.safetensors_format",
    "torch.utils.serialization.config",  # `torch.save` imports it at its first call
)
_PRELOAD_S = 120.0
_CONNECT_S = 30.0
# Fewer, larger pages make a fork of the preloaded process cheaper (25 ms against 35 ms, fork to exit); they are
# for the server only, which removes the variables again before it forks.
PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class WarmLaunch:
    """Connects to the session's warm server, starting it if nobody has.

    Attributes:
        session: a directory that all processes of the session share; short, since a socket's name is.
        owner: process whose end ends the server.
        modules: what the server imports; each choice of them has a server of its own.
    """

    session: Path
    owner: int
    modules: tuple[str, ...] = MODULES

    @property
    def address(self) -> Path:
        """The server's socket."""
        if self.modules == MODULES:
            return self.session / "warm"
        return self.session / f"warm-{hashlib.sha256(' '.join(self.modules).encode()).hexdigest()[:12]}"

    @property
    def temporary(self) -> Path:
        """Where all ranks of the session put temporary files; what killed ones leave goes with the session."""
        return self.session / "tmp"

    def connect(self) -> Connection:
        """A connection to a new keeper.

        Raises:
            LaunchError: the server could not be started; the text has its reason.
        """
        with FileLock(self.session / f"{self.address.name}.lock", timeout=_PRELOAD_S + _CONNECT_S):
            connection = self._try()
            if connection is None:
                self._start()
                connection = self._try()
        if connection is None:
            raise LaunchError(f"the warm server does not answer at {self.address}; its output is in {self.session / 'warm.log'}")
        return Connection(connection)

    def _try(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(str(self.address))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        return connection

    def begin(self) -> Preloading:
        """Starts a server with these modules before it is known what else it is to import: `Preloading.finish` says it."""
        return Preloading(self)

    def _start(self) -> None:
        self.begin().finish(self)


class Preloading:
    """A server that is importing. It serves once `finish` has said what else it is to import, and under which address.

    Meanwhile its process goes on by itself; it ends when this one does.
    """

    def __init__(self, launch: WarmLaunch) -> None:
        self._first = launch
        self._draft = launch.session / f"warm-{secrets.token_hex(4)}"
        self._log = launch.session / "warm.log"
        self._ready, ready_write = os.pipe()
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",  # a file of the user's where he stands must not be taken for a library
                        "-m",
                        "harness.launch.server",
                        str(self._draft),
                        str(launch.owner),
                        str(ready_write),
                        *launch.modules,
                    ],
                    env={**os.environ, **THREADS, **PAGES},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(ready_write,),
                )
        except BaseException:
            os.close(self._ready)
            raise
        finally:
            os.close(ready_write)

    def finish(self, launch: WarmLaunch) -> None:
        """Has it import what `launch` has beyond the modules it was begun with, and serve at that address.

        Raises:
            UsageError: torch is not there to be imported.
            LaunchError: it could not be started; the text has its reason.
        """
        more = launch.modules[len(self._first.modules) :]
        assert launch.modules == (*self._first.modules, *more)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and said why
            self._process.stdin.write("\n".join(more).encode())
            self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            answer = _read_answer(self._ready, _PRELOAD_S)
        finally:
            os.close(self._ready)
            self._ready = -1
        if answer != "ready":
            late = not answer and self._process.poll() is None
            self._end()
            if answer.startswith(("ImportError", "ModuleNotFoundError")):
                raise UsageError(
                    [f"{sys.executable}, which trains, cannot import what it needs: {answer}; expected torch 2.6 or newer"]
                )
            if late:
                raise LaunchError(
                    f"the warm server ({sys.executable}) had not imported torch after {_PRELOAD_S:g} s: the machine is too "
                    "busy, or its disk is slow. Run fewer things at once, or use launch cold"
                )
            log_tail = self._log.read_text(errors="replace")[-2000:]
            raise LaunchError(
                f"the warm server ({sys.executable}) could not be started: {answer or 'it ended without a word'}\n"
                f"{log_tail}\nIs torch installed for this interpreter? Use launch cold with another one if not."
            )
        self._draft.rename(launch.address)
        # The server outlives this process where the owner does; it is the owner's end that ends it, not ours.
        self._process.returncode = 0

    @property
    def waits(self) -> bool:
        """Whether it waits to be told the rest."""
        return self._ready >= 0

    def abandon(self) -> None:
        """Ends it, if it does not serve yet."""
        if self.waits:
            os.close(self._ready)
            self._ready = -1
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _read_answer(fd: int, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    data = b""
    while (left := deadline - time.monotonic()) > 0 and select.select([fd], [], [], left)[0]:
        piece = os.read(fd, 65536)
        data += piece
        if not piece or data == b"ready":
            break
    return data.decode(errors="replace")
