"""What the processes of one session share: a short directory for the warm server's socket, and an end to it.

Responsible for: making and removing that directory, and telling the warm server to leave. A session is one pytest run with all
its workers, or one `harness` command. What a killed one leaves, the next one removes (`harness.launch.folder`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.launch import folder
from harness.launch.warm import WarmLaunch

_GOODBYE_S = 10.0


# The name of a socket has room for 107 bytes, of which the warm server's needs 44 behind the directory for temporary files.
_LONGEST = 62
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a folder of our own is made there


def _short_place() -> Path:
    """Where temporary files go; another place where its name is too long for the sockets that lie there.

    Raises:
        UsageError: there is no place whose name is short enough.
    """
    usual = tempfile.gettempdir()
    for place in (usual, *_SHORT_PLACES):
        if len(os.fsencode(place)) <= _LONGEST and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    tried = ", ".join((usual, *_SHORT_PLACES))
    raise UsageError(
        [
            f"found no directory for sockets, whose names can have 107 bytes: tried {tried}; expected one that can be written to "
            f"and whose name has at most {_LONGEST} bytes. Set TMPDIR to one"
        ]
    )


@dataclass(frozen=True)
class Session:
    """One session.

    Attributes:
        directory: its directory; made only when the warm server is needed.
        owner: process whose end ends the session.
    """

    directory: Path
    owner: int

    @classmethod
    def new(cls) -> Session:
        """A session of this process. Nothing is made yet."""
        # A socket's name has room for 107 bytes, so this does not lie in the run directory.
        return cls(_short_place() / folder.new_name(), os.getpid())

    def warm(self) -> WarmLaunch:
        """The session's warm launch; makes the directory, readable by this user only, and removes what killed ones left."""
        if not self.directory.exists():
            folder.sweep(self.directory.parent)
        folder.hold(self.directory)
        if self.directory.stat().st_uid != os.getuid():
            raise UsageError(
                [f"{self.directory} belongs to another user; expected a directory of one's own. Set TMPDIR elsewhere"]
            )
        return WarmLaunch(self.directory, self.owner)

    def close(self) -> None:
        """Ends the warm server and removes the directory. Called by the owner; a killed owner has the server do it."""
        addresses = [path for path in self.directory.glob("warm*") if path.is_socket()] if self.directory.is_dir() else []
        for address in addresses:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(_GOODBYE_S)
                connection.connect(str(address))
                connection.send(b"quit")
                connection.recv(1)  # end of file: the server has gone
        shutil.rmtree(self.directory, ignore_errors=True)
        folder.let_go(self.directory)
