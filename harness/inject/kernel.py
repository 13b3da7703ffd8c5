"""Thin, typed calls into the kernel that Python 3.11 has no function for. No policy.

Source: seccomp(2), seccomp_unotify(2), pidfd_getfd(2), process_vm_readv(2), renameat2(2), prctl(2), mount(2), unshare(2),
syncfs(2), sync_file_range(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
from dataclasses import dataclass

from harness.inject.syscalls import AT_FDCWD, this_architecture

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SET_PTRACER = 0x59616D61
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18

_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_GET_NOTIF_SIZES = 3
_FLAG_NEW_LISTENER = 1 << 3
_FLAG_WAIT_KILLABLE_RECV = 1 << 5
_IOCTL_RECEIVE = 0xC0502100
_IOCTL_SEND = 0xC0182101
_IOCTL_ADD_DESCRIPTOR = 0x40182103
_IOCTL_SET_FLAGS = 0x40082104
_ADD_AT_NUMBER, _ADD_AND_ANSWER = 1, 2
_FD_SYNC_WAKE_UP = 1
_RESPONSE_CONTINUE = 1
NOTIFICATION_SIZE_BYTES = 80
_NOTIFICATION = struct.Struct("QIIiIQ6Q")
_RESPONSE = struct.Struct("QqiI")
_ADD = struct.Struct("QIIII")

_libc = ctypes.CDLL(None, use_errno=True)
_Long = ctypes.c_int64
_libc.syscall.restype = ctypes.c_long
_libc.process_vm_readv.restype = _libc.process_vm_writev.restype = ctypes.c_ssize_t


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    """Sets an attribute of the calling process. Raises: OSError."""
    _checked(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option})")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_filter(code: bytes) -> int:
    """Installs a filter on the calling thread and everything it starts from now on.

    The kernel is asked for WAIT_KILLABLE_RECV (5.19): without it a signal makes the same call notify twice, and counts
    of occurrences break.

    Returns:
        The listener: a descriptor on which the trapped calls are announced.

    Raises:
        OSError: EINVAL where user notification does not exist (old kernel, gVisor), EBUSY where a filter of this tree
            already has a listener, EACCES without PR_SET_NO_NEW_PRIVS.
    """
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = _FilterProgram(len(code) // 8, ctypes.cast(buffer, ctypes.c_char_p))
    number = this_architecture().numbers["seccomp"]
    flags = _FLAG_NEW_LISTENER | _FLAG_WAIT_KILLABLE_RECV
    return _checked(_libc.syscall(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(filters)), "seccomp")


def notification_sizes() -> tuple[int, int]:
    """Sizes in bytes of a notification and of a response in this kernel. Raises: OSError where it has neither."""
    sizes = (ctypes.c_uint16 * 3)()
    _checked(
        _libc.syscall(this_architecture().numbers["seccomp"], _SECCOMP_GET_NOTIF_SIZES, 0, ctypes.byref(sizes)), "seccomp sizes"
    )
    return int(sizes[0]), int(sizes[1])


def wake_synchronously(listener: int) -> bool:
    """Makes answers cheaper (kernel 6.6: the waiting thread is woken on this processor). Returns whether it is so."""
    try:
        fcntl.ioctl(listener, _IOCTL_SET_FLAGS, _FD_SYNC_WAKE_UP)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Notification:
    """A system call that waits for an answer. `thread` is the id of the calling thread."""

    id: int
    thread: int
    number: int
    arguments: tuple[int, ...]


def receive(listener: int) -> Notification | None:
    """Takes the next waiting call; None if its thread died meanwhile."""
    buffer = bytearray(NOTIFICATION_SIZE_BYTES)
    try:
        fcntl.ioctl(listener, _IOCTL_RECEIVE, buffer)
    except FileNotFoundError:
        return None
    fields = _NOTIFICATION.unpack(buffer)
    return Notification(fields[0], fields[1], fields[3], fields[6:])


def _send(listener: int, response: bytes) -> bool:
    try:
        fcntl.ioctl(listener, _IOCTL_SEND, response)
    except FileNotFoundError:  # the thread is gone
        return False
    return True


def let_run(listener: int, notification: Notification) -> bool:
    """The call goes on as if nothing were there. Returns: False if the thread is gone."""
    return _send(listener, _RESPONSE.pack(notification.id, 0, 0, _RESPONSE_CONTINUE))


def answer(listener: int, notification: Notification, *, value: int = 0, errno_number: int = 0) -> bool:
    """The call does not happen; the caller sees `value`, or -1 with this errno. Returns: False if the thread is gone."""
    return _send(listener, _RESPONSE.pack(notification.id, value, -errno_number, 0))


def answer_with_descriptor(listener: int, notification: Notification, fd: int, number: int, *, close_on_exec: bool) -> bool:
    """The call does not happen; the caller gets a copy of our descriptor `fd` at that number, as the call's result.

    Returns:
        False if the thread is gone.

    Raises:
        OSError: EBADF where `number` is over the caller's limit of open files.
    """
    flags = _ADD_AT_NUMBER | _ADD_AND_ANSWER
    request = _ADD.pack(notification.id, flags, fd, number, os.O_CLOEXEC if close_on_exec else 0)
    try:
        fcntl.ioctl(listener, _IOCTL_ADD_DESCRIPTOR, request)
    except FileNotFoundError:
        return False
    return True


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(pid: int, address: int, size_bytes: int) -> bytes:
    """Bytes of another process. Raises: OSError (EPERM: not allowed to trace it; EFAULT: not mapped)."""
    buffer = ctypes.create_string_buffer(size_bytes)
    local = _Vector(ctypes.cast(buffer, ctypes.c_void_p), size_bytes)
    remote = _Vector(address, size_bytes)
    done = _checked(_libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0), "process_vm_readv")
    return buffer.raw[:done]


def read_number(pid: int, address: int) -> int:
    """A 64-bit number in the memory of another process. Raises: OSError."""
    return int.from_bytes(read_memory(pid, address, 8), sys.byteorder, signed=True)


def write_number(pid: int, address: int, value: int) -> None:
    """Puts a 64-bit number into the memory of another process. Raises: OSError."""
    buffer = ctypes.create_string_buffer(value.to_bytes(8, sys.byteorder, signed=True), 8)
    local, remote = _Vector(ctypes.cast(buffer, ctypes.c_void_p), 8), _Vector(address, 8)
    _checked(_libc.process_vm_writev(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0), "process_vm_writev")


def rename_with_flags(source: str, target: str, flags: int) -> None:
    """Calls renameat2(2) on two absolute paths. Raises: OSError."""
    result = _libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags))
    _checked(result, "renameat2")


def duplicate_descriptor(pid: int, fd: int) -> int:
    """A descriptor of this process for the same open file (it shares the offset). Raises: OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        return _checked(_libc.syscall(this_architecture().numbers["pidfd_getfd"], pidfd, fd, 0), "pidfd_getfd")
    finally:
        os.close(pidfd)


def unshare(flags: int) -> None:
    """Gives the process namespaces of its own. Raises: OSError (EPERM where namespaces are not allowed)."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mounts a file system. Raises: OSError."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None)
    _checked(result, f"mount {kind or source} on {target}")


def unmount(target: str, *, lazily: bool = True) -> None:
    """Calls umount2(2), with MNT_DETACH where that may be done `lazily`. Raises: OSError (EBUSY while it is in use)."""
    _checked(_libc.umount2(target.encode(), 2 if lazily else 0), f"umount {target}")


def sync_file_range(fd: int, offset: int, size_bytes: int, flags: int) -> None:
    """Writes pages of a file to the disk, and makes nothing durable. Raises: OSError."""
    _checked(_libc.sync_file_range(fd, _Long(offset), _Long(size_bytes), ctypes.c_uint(flags)), "sync_file_range")


def syncfs(fd: int) -> None:
    """Makes everything durable that the file system of an open file holds. Raises: OSError."""
    _checked(_libc.syncfs(fd), "syncfs")
