"""Watched files get descriptors from `FIRST_WATCHED_FD` on, so that the filter can tell them from sockets.

Responsible for: opening a file on behalf of a process and giving it the descriptor, and keeping copies of such a
descriptor in the same range. The process sees an ordinary descriptor with an unusual number.
Not covered: a copy that the process puts below that range with dup2 (`EscapeError`); a descriptor passed over a socket.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Protocol

from harness.inject import kernel, process
from harness.inject.bpf import FIRST_WATCHED_FD, WRITING_FLAGS
from harness.inject.operation import Operation

_OPEN_HOW = struct.Struct("QQQ")
_F_DUPFD_CLOEXEC = 1030


class OpenWitness(Protocol):
    """Is told of a file that was opened for writing."""

    def opened(self, fd: int, *, existed: bool, emptied: bool) -> None:
        """The open file; whether it was there before, and whether it was cut to nothing."""


class EscapeError(Exception):
    """A copy of a watched descriptor goes to a number where its writes cannot be seen; the text says which."""


def open_arguments(operation: Operation) -> tuple[int, int]:
    """Flags and mode of an open, whichever call it is. Raises: OSError if the process is gone."""
    arguments, name = operation.arguments, operation.call.name
    if name == "creat":
        return os.O_CREAT | os.O_WRONLY | os.O_TRUNC, arguments[1] & 0o7777
    if name == "openat2":
        flags, mode, _ = _OPEN_HOW.unpack(kernel.read_memory(operation.pid, arguments[2], _OPEN_HOW.size))
        return flags & 0xFFFFFFFF, mode & 0o7777
    first = 1 if name == "open" else 2
    return arguments[first] & 0xFFFFFFFF, arguments[first + 1] & 0o7777


def open_file(operation: Operation) -> int:
    """Opens the file exactly as the process would, here. Raises: OSError with the errno that it would have seen."""
    flags, mode = open_arguments(operation)
    previous = os.umask(process.umask_of(operation.pid))
    try:
        return os.open(operation.own_paths[0], flags | os.O_CLOEXEC, mode)
    finally:
        os.umask(previous)


def hand_over(operation: Operation, witness: OpenWitness | None = None) -> bool:
    """Lets an open happen, in the watched range. What is no regular file, or is only read, is left to the kernel.

    Returns:
        Whether it was opened here; `witness` has then been told of it.

    Raises:
        OSError: the open fails, as it would have for the process.
    """
    flags, _ = open_arguments(operation)
    path = operation.own_paths[0]
    if not flags & WRITING_FLAGS or not _regular(path):
        operation.let_run()
        return False
    existed = os.path.lexists(path)
    fd = open_file(operation)
    try:
        if witness is not None:
            witness.opened(fd, existed=existed, emptied=bool(flags & os.O_TRUNC))
        _give(operation, fd, close_on_exec=bool(flags & os.O_CLOEXEC))
    finally:
        os.close(fd)
    return True


def copy(operation: Operation) -> None:
    """Lets a copy of a watched descriptor be made, in the watched range where the process leaves the choice.

    Raises:
        EscapeError: the process has chosen a number between 3 and the watched range; the copy is made.
        OSError: the process is gone.
    """
    arguments, name = operation.arguments, operation.call.name
    if name in ("dup2", "dup3"):
        operation.let_run()
        if 2 < arguments[1] < FIRST_WATCHED_FD:
            raise EscapeError(f"{operation.paths[0]} was copied to descriptor {arguments[1]}, where its writes cannot be seen")
        return
    if name == "fcntl" and arguments[2] >= FIRST_WATCHED_FD:
        operation.let_run()
        return
    close_on_exec = name == "fcntl" and arguments[1] == _F_DUPFD_CLOEXEC
    fd = kernel.duplicate_descriptor(operation.pid, arguments[0])
    try:
        _give(operation, fd, close_on_exec=close_on_exec)
    finally:
        os.close(fd)


def _regular(path: str) -> bool:
    """Whether opening may be done from here: a pipe would block the supervisor, a device may mind who opens it."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except FileNotFoundError:
        return True


def _give(operation: Operation, fd: int, *, close_on_exec: bool) -> None:
    """Answers the call with a copy of `fd` at the first free number of the watched range."""
    number = FIRST_WATCHED_FD
    while os.path.lexists(f"/proc/{operation.pid}/fd/{number}"):
        number += 1
    kernel.answer_with_descriptor(operation.listener, operation.notification, fd, number, close_on_exec=close_on_exec)
