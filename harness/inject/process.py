"""What the supervisor can see of a training process from outside: its memory, descriptors, paths, rank.

Responsible for: decoding the arguments of a stopped system call. Not responsible for: what to do with the call.
A process may die at any moment; every function then raises `ProcessLookupError` or another `OSError`.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil

from harness.inject import kernel
from harness.inject.syscalls import AT_FDCWD, Call

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PATH_BYTES = 4096
_VECTOR = struct.Struct("QQ")
_PIECE_BYTES = 1 << 20


def process_of(thread: int) -> int:
    """The process that a thread belongs to."""
    # Done for every stopped call. The first thread of a process has the number of the process, and only such a thread can
    # have a pidfd without further flags; asking so takes a tenth of the time that reading /proc takes.
    try:
        os.close(os.pidfd_open(thread))
    except OSError:
        return _process_by_status(thread)
    return thread


def _process_by_status(thread: int) -> int:
    for line in Path(f"/proc/{thread}/status").read_bytes().split(b"\n"):
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    raise ProcessLookupError(thread)


def rank_in_environment(pid: int) -> int | None:
    """The RANK that the process was started with, as torchrun sets it; None if it has none."""
    for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = item.partition(b"=")
        if name == b"RANK" and value.isdigit():
            return int(value)
    return None


def ancestry(pid: int) -> Iterator[int]:
    """A process, its parent, and so on, as far as they are there."""
    with contextlib.suppress(OSError):
        while pid > 1:
            yield pid
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def works(pid: int) -> bool:
    """Whether any thread of a process runs, is ready to, or waits for a disk; False if the process is gone."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  asked often while an operation is held
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state in (b"R", b"D"):
                    return True
    return False


def descendants(pid: int) -> list[int]:
    """All processes that descend from a process and are alive; none if it is gone."""
    with contextlib.suppress(psutil.Error):
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    return []


def umask_of(pid: int) -> int:
    """The file mode creation mask of the process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def signed(value: int, bits: int = 32) -> int:
    """A system call argument as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def read_string(pid: int, address: int) -> str:
    """A C string. Read page by page: the next page may not be mapped."""
    data = b""
    while len(data) < _PATH_BYTES:
        size = min(_PATH_BYTES, _PAGE_BYTES - (address + len(data)) % _PAGE_BYTES)
        data += kernel.read_memory(pid, address + len(data), size)
        if b"\0" in data:
            break
    return os.fsdecode(data.split(b"\0")[0])


def descriptor_path(pid: int, fd: int) -> str:
    """What an open descriptor refers to: a path, or a word such as `socket:[123]`."""
    # Not pathlib: this is done for every stopped call, and pathlib takes five times as long.
    return os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")  # noqa: PTH115


def call_paths(thread: int, call: Call, arguments: tuple[int, ...]) -> list[str]:
    """Absolute paths that a call works on, source first; a descriptor's path for calls on descriptors."""
    if call.fd is not None:
        return [descriptor_path(thread, arguments[call.fd] & 0xFFFFFFFF)]
    return [_resolve(thread, arguments, directory, path) for directory, path in call.paths]


def _resolve(thread: int, arguments: tuple[int, ...], directory: int | None, path: int) -> str:
    text = read_string(thread, arguments[path])
    if text.startswith("/"):
        return text
    fd = AT_FDCWD if directory is None else signed(arguments[directory])
    base = str(Path(f"/proc/{thread}/cwd").readlink()) if fd == AT_FDCWD else descriptor_path(thread, fd)
    return f"{base.rstrip('/')}/{text}"


def _pieces(thread: int, call: Call, arguments: tuple[int, ...]) -> list[tuple[int, int]]:
    """(address, length) of each run of bytes that a write passes."""
    if call.data == "buffer":
        return [(arguments[1], arguments[2])]
    if call.data == "vector":
        table = kernel.read_memory(thread, arguments[1], _VECTOR.size * (arguments[2] & 0xFFFFFFFF))
        return list(_VECTOR.iter_unpack(table))
    return []


def data_size(thread: int, call: Call, arguments: tuple[int, ...]) -> int:
    """How many bytes the call means to transfer."""
    if call.data == "vector":
        return sum(length for _, length in _pieces(thread, call, arguments))
    return arguments[call.size] if call.size is not None else 0


def read_data(thread: int, call: Call, arguments: tuple[int, ...], limit_bytes: int) -> Iterator[bytes]:
    """The first `limit_bytes` bytes that a write passes, in pieces of at most 1 MiB, so that memory stays flat."""
    for address, length in _pieces(thread, call, arguments):
        length = min(length, limit_bytes)
        limit_bytes -= length
        while length > 0:
            piece = kernel.read_memory(thread, address, min(length, _PIECE_BYTES))
            yield piece
            address += len(piece)
            length -= len(piece)


def private_memory_bytes(pid: int) -> int:
    """Memory that the process shares with no other: what it costs beyond the process that it was forked from."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) * 1024
