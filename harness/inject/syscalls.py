"""One table of system calls per architecture: number, family, and which argument is what.

Responsible for: the facts of the kernel's interface that the gate needs. No behaviour.
Source: `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h` of Linux; the meaning of the
arguments from the man page of each call.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from harness.errors import CapabilityError

AT_FDCWD = -100


@dataclass(frozen=True)
class Call:
    """One system call.

    Attributes:
        name: its Linux name.
        operation: the family word of `harness.fault.OPERATIONS`; "dup" for copying a descriptor, which is no file operation
            but must not hide one.
        paths: pairs (argument of the directory descriptor or None, argument of the path), source first.
        fd: the argument that is the descriptor it works on; None for calls on paths.
        flags: the argument that holds open flags; None if there is none.
        data: how bytes are passed: "buffer" (pointer, length), "vector" (iovec, count), "" for none of them.
        size: the argument that holds a length; None if there is none.
        offset: the argument that holds the file offset of a positioned write; None for the descriptor's own.
    """

    name: str
    operation: str
    paths: tuple[tuple[int | None, int], ...] = ()
    fd: int | None = None
    flags: int | None = None
    data: str = ""
    size: int | None = None
    offset: int | None = None


CALLS = (
    Call("open", "open", paths=((None, 0),), flags=1),
    Call("creat", "open", paths=((None, 0),)),
    Call("openat", "open", paths=((0, 1),), flags=2),
    Call("openat2", "open", paths=((0, 1),)),
    Call("read", "read", fd=0, data="buffer", size=2),
    Call("pread64", "read", fd=0, data="buffer", size=2, offset=3),
    Call("readv", "read", fd=0, data="vector"),
    Call("preadv", "read", fd=0, data="vector", offset=3),
    Call("preadv2", "read", fd=0, data="vector", offset=3),
    Call("write", "write", fd=0, data="buffer", size=2),
    Call("pwrite64", "write", fd=0, data="buffer", size=2, offset=3),
    Call("writev", "write", fd=0, data="vector"),
    Call("pwritev", "write", fd=0, data="vector", offset=3),
    Call("pwritev2", "write", fd=0, data="vector", offset=3),
    Call("sendfile", "write", fd=0, size=3),
    Call("copy_file_range", "write", fd=2, size=4),
    Call("truncate", "truncate", paths=((None, 0),), size=1),
    Call("ftruncate", "truncate", fd=0, size=1),
    Call("fallocate", "truncate", fd=0, size=3),
    Call("fsync", "fsync", fd=0),
    Call("fdatasync", "fsync", fd=0),
    Call("sync_file_range", "fsync", fd=0),
    Call("syncfs", "fsync", fd=0),
    Call("sync", "fsync"),  # of everything, so of the watched directory too
    Call("rename", "rename", paths=((None, 0), (None, 1))),
    Call("renameat", "rename", paths=((0, 1), (2, 3))),
    Call("renameat2", "rename", paths=((0, 1), (2, 3))),
    Call("link", "link", paths=((None, 0), (None, 1))),
    Call("linkat", "link", paths=((0, 1), (2, 3))),
    Call("symlink", "symlink", paths=((None, 1),)),
    Call("symlinkat", "symlink", paths=((1, 2),)),
    Call("unlink", "unlink", paths=((None, 0),)),
    Call("unlinkat", "unlink", paths=((0, 1),)),
    Call("mkdir", "mkdir", paths=((None, 0),)),
    Call("mkdirat", "mkdir", paths=((0, 1),)),
    Call("rmdir", "rmdir", paths=((None, 0),)),
    Call("dup", "dup", fd=0),
    Call("dup2", "dup", fd=0),
    Call("dup3", "dup", fd=0),
    Call("fcntl", "dup", fd=0),
    Call("chmod", "chmod", paths=((None, 0),)),
    Call("fchmod", "chmod", fd=0),
    Call("fchmodat", "chmod", paths=((0, 1),)),
    Call("fchmodat2", "chmod", paths=((0, 1),)),
)
BY_NAME = {call.name: call for call in CALLS}


@dataclass(frozen=True)
class Architecture:
    """The numbers of one architecture.

    Attributes:
        audit: the AUDIT_ARCH value that the kernel passes to a filter.
        numbers: name → number; a name that is missing does not exist there.
    """

    name: str
    audit: int
    numbers: dict[str, int]


X86_64 = Architecture(
    "x86_64",
    0xC000003E,
    {
        "read": 0,
        "write": 1,
        "open": 2,
        "pread64": 17,
        "pwrite64": 18,
        "readv": 19,
        "writev": 20,
        "sendfile": 40,
        "fsync": 74,
        "fdatasync": 75,
        "truncate": 76,
        "ftruncate": 77,
        "rename": 82,
        "mkdir": 83,
        "rmdir": 84,
        "creat": 85,
        "link": 86,
        "unlink": 87,
        "symlink": 88,
        "chmod": 90,
        "fchmod": 91,
        "sync": 162,
        "openat": 257,
        "mkdirat": 258,
        "unlinkat": 263,
        "renameat": 264,
        "linkat": 265,
        "symlinkat": 266,
        "fchmodat": 268,
        "sync_file_range": 277,
        "fallocate": 285,
        "preadv": 295,
        "pwritev": 296,
        "syncfs": 306,
        "renameat2": 316,
        "copy_file_range": 326,
        "preadv2": 327,
        "pwritev2": 328,
        "openat2": 437,
        "fchmodat2": 452,
        "seccomp": 317,
        "dup": 32,
        "dup2": 33,
        "fcntl": 72,
        "dup3": 292,
        "io_uring_setup": 425,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
    },
)
AARCH64 = Architecture(
    "aarch64",
    0xC00000B7,
    {
        "mkdirat": 34,
        "unlinkat": 35,
        "symlinkat": 36,
        "linkat": 37,
        "renameat": 38,
        "truncate": 45,
        "ftruncate": 46,
        "fallocate": 47,
        "fchmod": 52,
        "fchmodat": 53,
        "openat": 56,
        "read": 63,
        "write": 64,
        "readv": 65,
        "writev": 66,
        "pread64": 67,
        "pwrite64": 68,
        "preadv": 69,
        "pwritev": 70,
        "sendfile": 71,
        "sync": 81,
        "fsync": 82,
        "fdatasync": 83,
        "sync_file_range": 84,
        "syncfs": 267,
        "renameat2": 276,
        "copy_file_range": 285,
        "preadv2": 286,
        "pwritev2": 287,
        "openat2": 437,
        "fchmodat2": 452,
        "seccomp": 277,
        "dup": 23,
        "dup3": 24,
        "fcntl": 25,
        "io_uring_setup": 425,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
    },
)
ARCHITECTURES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


def this_architecture() -> Architecture:
    """The table for this machine.

    Raises:
        CapabilityError: there is none.
    """
    machine = platform.machine().lower()
    if machine not in ARCHITECTURES:
        raise CapabilityError(
            f"there is no system call table for {machine!r}",
            "stop system calls of a training process",
            f"The harness knows {', '.join(sorted(ARCHITECTURES))}.",
        )
    return ARCHITECTURES[machine]
