"""A TCP port for the ranks of an attempt to meet at.

Responsible for: that no two attempts on this machine get the same one, whoever runs them. It lies below the ports that the
kernel hands out by itself, and is held by a UDP socket of the same number, which the end of its process gives back.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from harness.errors import LaunchError

_PORTS = (15_000, 29_000)
_TRIES = 200


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port that is free now, and nobody else's who asks here. Raises: LaunchError if none is found."""
    drawn, refused = random.SystemRandom(), OSError()
    for _ in range(_TRIES):
        port = drawn.randrange(*_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held, socket.socket() as tried:
            try:
                held.bind(("127.0.0.1", port))
                tried.bind(("127.0.0.1", port))
            except OSError as error:  # somebody has it; if nobody lets us have any, the last reason is said
                refused = error
                continue
            tried.close()
            yield port
            return
    raise LaunchError(f"no free TCP port was found between {_PORTS[0]} and {_PORTS[1]} in {_TRIES} tries: {refused}")
