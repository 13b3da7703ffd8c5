"""The half of the gate that runs inside the training process, before the trainer: install the filter, hand it over.

Responsible for: one filter per process tree, installed after the fork and before anything of the trainer runs.
Standard library only; called in a forked child, so it starts no thread and takes no lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket

from harness.inject import bpf, kernel
from harness.inject.syscalls import this_architecture


def install(control: socket.socket, rank: int, supervisor: int, *, reads: bool, read_opens: bool, output: bool = False) -> None:
    """Puts this process behind the gate and sends the listener to the supervisor.

    Args:
        control: sequenced-packet socket to the supervisor.
        rank: whose calls these are; -1 for a launcher that makes several ranks.
        supervisor: process id that is allowed to read this process's memory.
        reads: also trap reads.
        read_opens: also trap opens that only read.
        output: also trap writes to the standard output and error.

    Raises:
        OSError: the kernel refuses; the keeper reports it to the supervisor.
    """
    _make_room_for_descriptors()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    # Only the Yama security module knows this call; without Yama there is nothing to allow.
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_PTRACER, supervisor)
    code = bpf.program(this_architecture(), reads=reads, read_opens=read_opens, output=output)
    listener = kernel.install_filter(code)
    message = json.dumps({"event": "gate", "rank": rank, "pid": os.getpid()}).encode()
    socket.send_fds(control, [message], [listener])
    # os.close would do as well; what matters is that no copy stays here: a listener in its own tree is never closed.
    os.close(listener)


def _make_room_for_descriptors() -> None:
    """Watched files get high descriptor numbers; the limit of open files must allow them."""
    wanted = 2 * bpf.FIRST_WATCHED_FD
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(errno.EMFILE, f"the hard limit of open files is {hard}; the gate needs {wanted} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
