"""The seccomp filter: which system calls of a training process wait for the supervisor.

Responsible for: a classic BPF program as bytes. Pure.
Fault model: only calls that change files are trapped (reads and read-only opens on request). A filter sees numbers, not
files, and a training process writes to sockets far more often than to files: so the gate gives every file of interest a
descriptor from `FIRST_WATCHED_FD` on when it is opened, and writes are trapped on those only. Printing, computing and
talking to other ranks then cost nothing. Copies of such a descriptor are trapped too, so that none escapes to a low number.
Not covered: stores through `mmap`; `io_uring` is refused with ENOSYS, since its writes would pass unseen.
Source: seccomp(2), `include/uapi/linux/filter.h`, `include/uapi/linux/seccomp.h`.
"""

from __future__ import annotations

import errno
import os
import struct

from harness.inject.syscalls import CALLS, Architecture, Call

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_JUMP_SET = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_NOTIFY = 0x7FC00000
_ERRNO = 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
# High, so that it is free; below 1024, where select(2) and the usual limit of open files end.
FIRST_WATCHED_FD = 512
_F_DUPFD, _F_DUPFD_CLOEXEC = 0, 1030
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _instruction(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, k)


def _argument(index: int) -> bytes:
    # The low half of the 64-bit argument; both architectures are little endian.
    return _instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * index)


def _block(call: Call, number: int, read_opens: bool, output: bool) -> bytes:
    """Instructions for one call; falls through when the number is another one."""
    if output and call.operation == "write" and call.fd is not None:
        body = _argument(call.fd) + _instruction(_JUMP_GREATER, FIRST_WATCHED_FD - 1, 2, 0)
        body += _instruction(_JUMP_EQUAL, 1, 1, 0) + _instruction(_JUMP_EQUAL, 2, 0, 1)
    elif call.name == "fcntl":
        # Of its many commands only the two that copy a descriptor matter.
        body = _argument(1) + _instruction(_JUMP_EQUAL, _F_DUPFD, 1, 0) + _instruction(_JUMP_EQUAL, _F_DUPFD_CLOEXEC, 0, 3)
        body += _argument(0) + _instruction(_JUMP_GREATER, FIRST_WATCHED_FD - 1, 0, 1)
    elif call.fd is not None:
        last_free = FIRST_WATCHED_FD - 1 if call.operation in ("write", "dup") else 2
        body = _argument(call.fd) + _instruction(_JUMP_GREATER, last_free, 0, 1)
    elif call.flags is not None and not read_opens:
        body = _argument(call.flags) + _instruction(_JUMP_SET, WRITING_FLAGS, 0, 1)
    else:
        return _instruction(_JUMP_EQUAL, number, 0, 1) + _instruction(_RETURN, _NOTIFY)
    body += _instruction(_RETURN, _NOTIFY) + _instruction(_RETURN, _ALLOW)
    return _instruction(_JUMP_EQUAL, number, 0, len(body) // 8) + body


def program(architecture: Architecture, *, reads: bool = False, read_opens: bool = False, output: bool = False) -> bytes:
    """The filter for one process tree.

    Args:
        architecture: whose numbers to use; calls of any other ABI are let through.
        reads: also trap reads from descriptors above 2.
        read_opens: also trap opens that only read.
        output: also trap writes to the standard output and error.

    Returns:
        `struct sock_filter` instructions, 8 bytes each.
    """
    code = _instruction(_LOAD, _OFFSET_ARCH) + _instruction(_JUMP_EQUAL, architecture.audit, 1, 0) + _instruction(_RETURN, _ALLOW)
    code += _instruction(_LOAD, _OFFSET_NUMBER)
    for call in CALLS:
        if call.name in architecture.numbers and (reads or call.operation != "read"):
            code += _block(call, architecture.numbers[call.name], read_opens, output)
    code += _instruction(_JUMP_EQUAL, architecture.numbers["io_uring_setup"], 0, 1) + _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    return code + _instruction(_RETURN, _ALLOW)
