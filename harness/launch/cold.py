"""Cold launch: the keeper as a program of its own, which executes a command: one per rank, or one that makes the ranks.

Responsible for: starting that program. What it does afterwards is the same as in a warm launch.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass

from harness.errors import LaunchError
from harness.launch.connection import Connection


@dataclass(frozen=True)
class ColdLaunch:
    """Starts a fresh keeper for every attempt."""

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
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                ours.close()
                raise LaunchError(f"cannot start {sys.executable}: {error}") from None
        return Connection(ours, process)
