"""Disks that are too small.

Fault model: `full-disk` is a real file system (tmpfs with a size limit, in a mount namespace of the attempt's own), so
every call fails exactly as the kernel fails it. `quota` is kept by the gate where namespaces are not allowed, or where a
precise byte is wanted: the write that would pass the limit lands in part (as a real one does) or gets ENOSPC, and
removing files frees room.
Not covered: running out of inodes; delayed allocation (an ENOSPC that a real disk reports at fsync or close).
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from harness.inject import kernel


def used_bytes(root: Path) -> int:
    """Bytes of all files below a directory; files that vanish meanwhile do not count."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += Path(directory, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def room_bytes(path: str) -> int:
    """Bytes that can still be written to the file system of a path. Raises: OSError."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def private_mounts(*, user_namespace: bool = True) -> str:
    """Gives the calling process a mount namespace of its own.

    Args:
        user_namespace: whether it may be one inside a new user namespace, in which a real disk cannot be mounted.

    Returns:
        "root" if it was allowed as it is, "user namespace" if one had to be made for it.

    Raises:
        OSError: neither is allowed here.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        how = "root"
    except PermissionError:
        if not user_namespace:
            raise
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        how = "user namespace"
    # Nothing that is mounted here may reach the rest of the machine.
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    return how


class SmallDisk:
    """A tmpfs of a given size over a directory, seen by the calling process and its children only.

    Args:
        path: the directory; what is in it is copied onto the small disk, and back by `keep`.
        size_bytes: of the file system.

    Attributes:
        how: "root" or "user namespace".

    Raises:
        OSError: namespaces or mounts are not allowed (EPERM), or the files that are there do not fit (ENOSPC).
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        uid, gid = os.getuid(), os.getgid()
        self.how = private_mounts()
        # Through this descriptor the directory underneath stays reachable.
        self._below = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        options = f"size={size_bytes},mode=0755,uid={uid},gid={gid}"
        kernel.mount("tmpfs", str(path), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        shutil.copytree(f"/proc/self/fd/{self._below}", path, dirs_exist_ok=True, symlinks=True)

    def keep(self) -> None:
        """Brings the files back to the directory underneath, exactly, before the disk vanishes with its namespace.

        Raises:
            OSError: they could not be kept.
        """
        bring_back(self.path, self._below)


def bring_back(source: Path, below: int) -> None:
    """Makes an open directory hold exactly what another one holds.

    Args:
        source: what is copied.
        below: descriptor of the directory, which may be hidden by a mount; what is in it goes.

    Raises:
        OSError: a file could not be copied.
    """
    target = Path(f"/proc/self/fd/{below}")
    for entry in list(target.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)


def no_space(operation_size_bytes: int, room: int) -> tuple[int, int]:
    """What a write of that size gets where only `room` bytes are left: (bytes that land, errno or 0)."""
    if operation_size_bytes <= room:
        return operation_size_bytes, 0
    return (room, 0) if room > 0 else (0, errno.ENOSPC)
