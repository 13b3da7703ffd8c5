"""The supervisor's end of the control socket to a keeper."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import Any, Protocol

from harness.launch.spec import MESSAGE_BYTES, LaunchSpec

_GOODBYE_S = 15.0


class Process(Protocol):
    """A process of which we are the parent, as `subprocess.Popen` has it."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises: subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Ends it."""


@dataclass
class Connection:
    """One keeper.

    Attributes:
        control: the socket.
        process: the keeper's process where we are its parent (cold launch).
    """

    control: socket.socket
    process: Process | None = None

    def fileno(self) -> int:
        """For selectors."""
        return self.control.fileno()

    def launch(self, spec: LaunchSpec) -> None:
        """Sends the request; the answers come through `receive`."""
        self.control.setblocking(True)
        self.control.send(spec.to_message())

    def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """The next record and the descriptors that came with it; None when the keeper is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 4)
        except ConnectionResetError:
            return None, []
        for fd in fds:
            os.set_inheritable(fd, False)
        return (json.loads(data) if data else None), fds

    def kill_tree(self) -> None:
        """Asks the keeper to kill everything it has started; the exits are reported as usual."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.control.send(b"kill")

    def close(self) -> None:
        """Says goodbye: a keeper that still runs kills its tree and ends."""
        self.control.close()
        if self.process is not None:
            try:
                self.process.wait(_GOODBYE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Launcher(Protocol):
    """A way of starting the ranks."""

    def connect(self) -> Connection:
        """A connection to a new keeper. Raises: LaunchError."""
