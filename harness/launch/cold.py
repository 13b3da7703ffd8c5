"""Cold launch: the keeper as a program of its own, which executes a command: one per rank, or one that makes the ranks.

Responsible for: starting that program. What it does afterwards is the same as in a warm launch.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.errors import LaunchError
from harness.launch.connection import Connection

# A socket's name has room for 107 bytes; `multiprocessing` and torch put up to 40 behind the directory for temporary files.
_LONGEST = 64


@dataclass(frozen=True)
class ColdLaunch:
    """Starts a fresh keeper for every attempt.

    Attributes:
        temporary: where its processes put temporary files, so that what killed ones leave goes with the session; None for where
            the harness puts its own.
    """

    temporary: Path | None = None

    def connect(self) -> Connection:
        """A connection to a new keeper.

        Raises:
            LaunchError: the interpreter of the harness cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
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
