"""Doing a stopped system call on behalf of its process, in whole or in part.

Fault model: a call that is cut in the middle has landed its first k bytes, in order, at the offset where the process
would have written them (the open file and its offset are shared); a call that is killed *after* has happened entirely
although its process never sees the result.
Not covered: an address in memory that O_DIRECT refuses (what is done here is done from an aligned one). `fallocate` with flags,
`renameat2` with other flags than the two known ones, `fchmodat2`: those raise `CannotPerformError`, the call is let through,
and the fault counts as not fired.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator

from harness.inject import descriptors, kernel, process
from harness.inject.operation import Operation


class CannotPerformError(Exception):
    """This call cannot be done from outside."""


class Witness:
    """Is told what a call works on while it is done; this one does not listen (`harness.inject.recorder`)."""

    def file(self, fd: int) -> None:
        """The open file that a call works on."""

    def writes_at(self, offset: int) -> None:
        """Where a write begins, in bytes; a file that is open for appending is written at its end instead."""

    def resized(self, size_bytes: int) -> None:
        """The new length of a file."""

    def data(self, piece: bytes) -> None:
        """Bytes that have landed."""

    def path(self, path: str) -> None:
        """A file that a call works on by name; it is there now."""

    def opened(self, fd: int, *, existed: bool, emptied: bool) -> None:
        """A file that was opened for writing."""

    def exchanged(self) -> None:
        """A rename swapped two names."""


_NOBODY = Witness()


def proceed(operation: Operation) -> None:
    """Lets the call happen. Raises: OSError where it fails; the process has then not been answered."""
    if operation.call.operation == "open":
        descriptors.hand_over(operation)
    else:
        operation.let_run()


def perform(operation: Operation, limit_bytes: int | None = None, witness: Witness = _NOBODY) -> int:
    """Does the call, or the first `limit_bytes` bytes of it.

    Returns:
        What the call would have returned: bytes written, or 0.

    Raises:
        CannotPerformError: this kind of call cannot be done from outside.
        OSError: the call fails by itself (its errno is what the process would have seen), or the process is gone.
    """
    if operation.call.operation == "write":
        return _write(operation, operation.size_bytes if limit_bytes is None else limit_bytes, witness)
    if operation.call.operation == "read":
        return 0
    if operation.call.operation == "open":
        path = operation.own_paths[0]
        existed = os.path.lexists(path)
        fd = descriptors.open_file(operation)
        try:
            witness.opened(fd, existed=existed, emptied=bool(descriptors.open_arguments(operation)[0] & os.O_TRUNC))
        finally:
            os.close(fd)
        return 0
    if operation.call.fd is not None:
        return _with_descriptor(operation, witness)
    return _with_paths(operation, witness)


def _write(operation: Operation, limit_bytes: int, witness: Witness) -> int:
    call, arguments = operation.call, operation.arguments
    fd = kernel.duplicate_descriptor(operation.pid, arguments[call.fd or 0])
    written = 0
    try:
        witness.file(fd)
        offset = None if call.offset is None else arguments[call.offset]
        if call.name == "copy_file_range" and arguments[3]:
            offset = kernel.read_number(operation.pid, arguments[3])
        witness.writes_at(os.lseek(fd, 0, os.SEEK_CUR) if offset is None else offset)
        with _past_the_cache(operation, fd, limit_bytes) as direct:
            for piece in _pieces(operation, limit_bytes):
                source = _aligned(piece) if direct else memoryview(piece)
                done = _write_piece(fd, source, None if offset is None else offset + written, first=not written)
                witness.data(piece[:done])
                written += done
                if done < len(piece):
                    break
        if call.name == "copy_file_range" and arguments[3] and offset is not None:
            kernel.write_number(operation.pid, arguments[3], offset + written)
    finally:
        os.close(fd)
    return written


@contextlib.contextmanager
def _past_the_cache(operation: Operation, fd: int, limit_bytes: int) -> Iterator[bool]:
    """Whether what is written must be aligned in memory, and in its length: the file is open with O_DIRECT.

    A torn write has any length, and so have the pieces that come out of another file: they go through the cache. The flag belongs
    to the open file, which the process shares; its call waits meanwhile, and every other write to the file waits for us.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    direct = bool(flags & os.O_DIRECT)
    if not direct or (operation.call.data and limit_bytes >= operation.size_bytes):
        yield direct
        return
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    try:
        yield False
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _aligned(piece: bytes) -> memoryview:
    """The same bytes at the beginning of a page."""
    pages = mmap.mmap(-1, max(1, len(piece)))
    pages[: len(piece)] = piece
    return memoryview(pages)[: len(piece)]


def _pieces(operation: Operation, limit_bytes: int) -> Iterator[bytes]:
    if operation.call.data:
        yield from process.read_data(operation.notification.thread, operation.call, operation.arguments, limit_bytes)
        return
    # sendfile, copy_file_range: the bytes come from another file, at its own offset or at one that memory holds.
    source, place = (1, 2) if operation.call.name == "sendfile" else (0, 1)
    address = operation.arguments[place]
    fd = kernel.duplicate_descriptor(operation.pid, operation.arguments[source])
    try:
        position = kernel.read_number(operation.pid, address) if address else os.lseek(fd, 0, os.SEEK_CUR)
        while limit_bytes > 0 and (piece := os.pread(fd, min(limit_bytes, _PIECE_BYTES), position)):
            yield piece
            position += len(piece)
            limit_bytes -= len(piece)
        if address:
            kernel.write_number(operation.pid, address, position)
        else:
            os.lseek(fd, position, os.SEEK_SET)
    finally:
        os.close(fd)


def _write_piece(fd: int, piece: memoryview, offset: int | None, *, first: bool) -> int:
    """Bytes that landed. Raises: OSError if none of the whole call did; after that an error ends the call, as in the kernel."""
    done = 0
    while done < len(piece):
        try:
            done += os.write(fd, piece[done:]) if offset is None else os.pwrite(fd, piece[done:], offset + done)
        except OSError:
            if first and not done:
                raise
            break
    return done


def _with_descriptor(operation: Operation, witness: Witness) -> int:
    arguments = operation.arguments
    name = operation.call.name
    fd = kernel.duplicate_descriptor(operation.pid, arguments[0])
    try:
        witness.file(fd)
        if name == "fsync":
            os.fsync(fd)
        elif name == "sync_file_range":  # not an fsync: that would make durable what the job has left to chance
            kernel.sync_file_range(fd, *arguments[1:4])
        elif name == "fdatasync":
            os.fdatasync(fd)
        elif name == "syncfs":
            kernel.syncfs(fd)
        elif name == "ftruncate":
            witness.resized(arguments[1])
            os.ftruncate(fd, arguments[1])
        elif name == "fallocate" and arguments[1] == 0:
            witness.resized(max(os.fstat(fd).st_size, arguments[2] + arguments[3]))
            os.posix_fallocate(fd, arguments[2], arguments[3])
        elif name == "fchmod":
            os.fchmod(fd, arguments[1] & 0o7777)
            witness.file(fd)
        else:
            raise CannotPerformError(f"{name} with flags" if name == "fallocate" else name)
    finally:
        os.close(fd)
    return 0


def _with_paths(operation: Operation, witness: Witness) -> int:
    action = _PATH_ACTIONS.get(operation.call.name)
    if action is None:
        raise CannotPerformError(operation.call.name)
    paths = operation.own_paths
    made = operation.call.operation in ("mkdir", "symlink")
    if not made and os.path.lexists(paths[0]):
        witness.path(paths[0])
    if operation.call.operation == "truncate":
        witness.resized(operation.arguments[1])
    previous = os.umask(process.umask_of(operation.pid))
    try:
        if action is _rename_with_flags and operation.arguments[4] & _RENAME_EXCHANGE:
            witness.exchanged()
        action(operation, paths)
    finally:
        os.umask(previous)
    if made or operation.call.operation == "chmod":
        witness.path(paths[0])
    return 0


def _rename_with_flags(operation: Operation, paths: list[str]) -> None:
    flags = operation.arguments[4]
    if flags & ~(_RENAME_NOREPLACE | _RENAME_EXCHANGE):
        raise CannotPerformError("renameat2 with flags")
    kernel.rename_with_flags(paths[0], paths[1], flags)


def _unlink(operation: Operation, paths: list[str]) -> None:
    (os.rmdir if operation.arguments[2] & _AT_REMOVEDIR else os.unlink)(paths[0])


def _link(operation: Operation, paths: list[str]) -> None:
    flags = operation.arguments[4] if operation.call.name == "linkat" else 0
    if flags & ~_AT_SYMLINK_FOLLOW or "/proc/self/" in operation.paths[0]:
        raise CannotPerformError(f"{operation.call.name} with flags")
    os.link(paths[0], paths[1], follow_symlinks=bool(flags & _AT_SYMLINK_FOLLOW))


def _symlink(operation: Operation, paths: list[str]) -> None:
    os.symlink(process.read_string(operation.notification.thread, operation.arguments[0]), paths[0])


_AT_REMOVEDIR, _AT_SYMLINK_FOLLOW = 0x200, 0x400
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_PIECE_BYTES = 1 << 20
_PATH_ACTIONS: dict[str, Callable[[Operation, list[str]], None]] = {
    "sync": lambda *_: os.sync(),
    "truncate": lambda o, paths: os.truncate(paths[0], o.arguments[1]),
    "rename": lambda _, paths: os.rename(*paths),
    "renameat": lambda _, paths: os.rename(*paths),
    "renameat2": _rename_with_flags,
    "link": _link,
    "linkat": _link,
    "symlink": _symlink,
    "symlinkat": _symlink,
    "unlink": lambda _, paths: os.unlink(paths[0]),
    "unlinkat": _unlink,
    "mkdir": lambda o, paths: os.mkdir(paths[0], o.arguments[1] & 0o7777),
    "mkdirat": lambda o, paths: os.mkdir(paths[0], o.arguments[2] & 0o7777),
    "rmdir": lambda _, paths: os.rmdir(paths[0]),
    "chmod": lambda o, paths: os.chmod(paths[0], o.arguments[1] & 0o7777),
    "fchmodat": lambda o, paths: os.chmod(paths[0], o.arguments[2] & 0o7777),
}
