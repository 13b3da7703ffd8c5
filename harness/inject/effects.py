"""Doing a stopped system call on behalf of its process, in whole or in part.

Fault model: a call that is cut in the middle has landed its first k bytes, in order, at the offset where the process
would have written them (the open file and its offset are shared); a call that is killed *after* has happened entirely
although its process never sees the result.
Not covered: `sendfile` and `copy_file_range` in parts, `renameat2` with flags: those raise `CannotPerformError`, the
call is let through, and the fault counts as not fired.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from harness.inject import descriptors, kernel, process
from harness.inject.operation import Operation

_AT_REMOVEDIR = 0x200


class CannotPerformError(Exception):
    """This call cannot be done from outside."""


def proceed(operation: Operation) -> None:
    """Lets the call happen. Raises: OSError where it fails; the process has then not been answered."""
    if operation.call.operation == "open":
        descriptors.hand_over(operation)
    else:
        operation.let_run()


def perform(operation: Operation, limit_bytes: int | None = None) -> int:
    """Does the call, or the first `limit_bytes` bytes of it.

    Returns:
        What the call would have returned: bytes written, or 0.

    Raises:
        CannotPerformError: this kind of call cannot be done from outside.
        OSError: the call fails by itself (its errno is what the process would have seen), or the process is gone.
    """
    if operation.call.operation == "write":
        return _write(operation, operation.size_bytes if limit_bytes is None else limit_bytes)
    if operation.call.operation == "read":
        return 0
    if operation.call.operation == "open":
        os.close(descriptors.open_file(operation))
        return 0
    if operation.call.fd is not None:
        return _with_descriptor(operation)
    return _with_paths(operation)


def _write(operation: Operation, limit_bytes: int) -> int:
    if not operation.call.data:
        raise CannotPerformError(operation.call.name)
    arguments = operation.arguments
    thread = operation.notification.thread
    fd = kernel.duplicate_descriptor(operation.pid, arguments[0])
    written = 0
    try:
        for piece in process.read_data(thread, operation.call, arguments, limit_bytes):
            written += _write_piece(fd, piece, operation, written)
    finally:
        os.close(fd)
    return written


def _write_piece(fd: int, piece: bytes, operation: Operation, already: int) -> int:
    done = 0
    while done < len(piece):
        if operation.call.offset is None:
            done += os.write(fd, piece[done:])
        else:
            offset = operation.arguments[operation.call.offset]
            done += os.pwrite(fd, piece[done:], offset + already + done)
    return done


def _with_descriptor(operation: Operation) -> int:
    arguments = operation.arguments
    name = operation.call.name
    fd = kernel.duplicate_descriptor(operation.pid, arguments[0])
    try:
        if name in ("fsync", "sync_file_range"):
            os.fsync(fd)
        elif name == "fdatasync":
            os.fdatasync(fd)
        elif name == "syncfs":
            os.sync()
        elif name == "ftruncate":
            os.ftruncate(fd, arguments[1])
        elif name == "fallocate" and arguments[1] == 0:
            os.posix_fallocate(fd, arguments[2], arguments[3])
        elif name == "fchmod":
            os.fchmod(fd, arguments[1] & 0o7777)
        else:
            raise CannotPerformError(name)
    finally:
        os.close(fd)
    return 0


def _with_paths(operation: Operation) -> int:
    action = _PATH_ACTIONS.get(operation.call.name)
    if action is None:
        raise CannotPerformError(operation.call.name)
    previous = os.umask(process.umask_of(operation.pid))
    try:
        action(operation.own_paths, operation.arguments)
    finally:
        os.umask(previous)
    return 0


def _rename_without_flags(paths: list[str], arguments: tuple[int, ...]) -> None:
    if arguments[4]:
        raise CannotPerformError("renameat2 with flags")
    os.rename(*paths)


def _unlink(paths: list[str], arguments: tuple[int, ...]) -> None:
    (os.rmdir if arguments[2] & _AT_REMOVEDIR else os.unlink)(paths[0])


_PATH_ACTIONS: dict[str, Callable[[list[str], tuple[int, ...]], None]] = {
    "truncate": lambda paths, a: os.truncate(paths[0], a[1]),
    "rename": lambda paths, _: os.rename(*paths),
    "renameat": lambda paths, _: os.rename(*paths),
    "renameat2": _rename_without_flags,
    "link": lambda paths, _: os.link(*paths),
    "unlink": lambda paths, _: os.unlink(paths[0]),
    "unlinkat": _unlink,
    "mkdir": lambda paths, a: os.mkdir(paths[0], a[1] & 0o7777),
    "mkdirat": lambda paths, a: os.mkdir(paths[0], a[2] & 0o7777),
    "rmdir": lambda paths, _: os.rmdir(paths[0]),
    "chmod": lambda paths, a: os.chmod(paths[0], a[1] & 0o7777),
    "fchmodat": lambda paths, a: os.chmod(paths[0], a[2] & 0o7777),
}
