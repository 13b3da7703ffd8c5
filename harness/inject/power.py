"""A real disk whose power can be cut.

Fault model: the checkpoint directory lies on a file system of its own (ext4 or XFS with their defaults, on a loop device). The
cut is the shutdown that the kernel offers for this purpose: the file system stops at once, flushes neither data nor journal, and
refuses everything; mounted again it replays its journal as after a reboot. What it kept is what a job finds on its next start.
The cut is as little repeatable as a real one: what the kernel had written back by itself until then is there.
Not covered: a disk with a volatile cache of its own (what the file system has sent to the device is there afterwards, in the
order in which it was sent); blocks that are torn within the device; other mount options than the defaults.

Nothing can be left behind: the image loses its name before it is used, the loop device detaches itself, and the mount lives in a
namespace that dies with the attempt's processes.
Source: ext4_force_shutdown (fs/ext4/ioctl.c), xfs_fs_goingdown (fs/xfs/xfs_fsops.c), mke2fs(8), mkfs.xfs(8).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from harness.errors import CapabilityError
from harness.inject import kernel
from harness.inject.disk import bring_back, private_mounts, room_bytes
from harness.inject.loop import LoopDevice

# _IOR('X', 125, u32): EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are the same number, and so is "flush nothing, not even the log".
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_MIB = 1 << 20
_MAX_BYTES = 16 << 30
_MKFS_S = 60.0
_UNMOUNT_S = 10.0


@dataclass(frozen=True)
class _Kind:
    """How a file system is made and mounted: its smallest size, the program with its options, the mount options."""

    least_bytes: int
    program: tuple[str, ...]
    options: str


_KINDS = {
    # Lazy: without it an image of some GiB is written full of zeros first, which takes seconds and room on the real disk.
    "ext4": _Kind(
        64 * _MIB, ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1"), "noinit_itable"
    ),
    "xfs": _Kind(300 * _MIB, ("mkfs.xfs", "-q", "-f"), ""),
}


def cut(path: Path, filesystem: str) -> None:
    """Cuts the power of the real disk that holds a directory; from now on it answers every call with EIO.

    Args:
        path: any directory on it.
        filesystem: its kind, for the text of an error.

    Raises:
        OSError: it could not be cut.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    except OSError as error:
        raise OSError(error.errno, f"shutdown of {filesystem} at {path}: {error.strerror}") from None
    finally:
        os.close(fd)


def refusal(filesystem: str, error: str) -> CapabilityError:
    """The error for a machine on which no such disk can be made; `error` says what was missing."""
    package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[filesystem]
    return CapabilityError(
        f"a real {filesystem} disk could not be made ({error})",
        f"cut the power of a real {filesystem} disk",
        f"It needs root, loop devices (/dev/loop-control) and mkfs.{filesystem} (package {package}); "
        "`power-cut keeping ...`, the model, needs none of them.",
    )


class RealDisk:
    """A file system of a given kind over a directory, seen by the calling process and its children only.

    Args:
        path: the directory; what is in it is copied onto the disk and is durable there, and what is left comes back by `keep`.
        filesystem: ext4 or xfs.
        images: directory for the image, which has no name there.

    Attributes:
        how: "root"; there is no other way.

    Raises:
        OSError: no root (EPERM), no loop devices, no program that makes such a file system (ENOENT), none of that kind in
            this kernel (ENODEV), or too little room (ENOSPC); the text says which.
    """

    how = "root"

    def __init__(self, path: Path, filesystem: str, images: Path) -> None:
        self.path, self.filesystem, self._kind = path, filesystem, _KINDS[filesystem]
        program = shutil.which(self._kind.program[0], path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        if program is None:
            raise OSError(errno.ENOENT, f"{self._kind.program[0]} is not installed")
        private_mounts(user_namespace=False)
        self._below = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = self._make_device(images)
        self._make_filesystem(program)
        self._mount()
        for entry in path.iterdir():  # `lost+found`, which a checkpoint directory does not have
            entry.rmdir()
        shutil.copytree(f"/proc/self/fd/{self._below}", path, dirs_exist_ok=True, symlinks=True)
        self._sync()

    def keep(self) -> None:
        """Starts the disk again, which replays its journal if its power was cut, and brings back what is left of the files.

        Raises:
            OSError: they could not be kept.
        """
        self._unmount()
        self._mount()
        bring_back(self.path, self._below)
        self._unmount()
        self._device.close()

    def _make_device(self, images: Path) -> LoopDevice:
        room = room_bytes(str(images))
        if room < self._kind.least_bytes:
            raise OSError(errno.ENOSPC, f"{images} has room for {room} bytes; {self.filesystem} needs {self._kind.least_bytes}")
        image = images / f"disk-{os.getpid()}.img"
        fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            image.unlink()
            # Sparse: it takes no more than what is written to it, so that it may be as large as there is room.
            os.ftruncate(fd, max(self._kind.least_bytes, min(_MAX_BYTES, room // 2)))
            return LoopDevice(fd)
        except OSError as error:
            raise OSError(error.errno, f"a loop device: {error.strerror}") from None
        finally:
            os.close(fd)

    def _make_filesystem(self, program: str) -> None:
        command = [program, *self._kind.program[1:], self._device.path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_MKFS_S, check=False)
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"{' '.join(command)} did not end within {_MKFS_S:.0f} s") from None
        if done.returncode != 0:
            raise OSError(errno.EIO, f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")

    def _mount(self) -> None:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount(self._device.path, str(self.path), self.filesystem, flags, self._kind.options)

    def _unmount(self) -> None:
        """Really, not lazily: the disk is started again only when nobody uses it any more."""
        deadline = time.monotonic() + _UNMOUNT_S
        while True:
            try:
                kernel.unmount(str(self.path), lazily=False)
            except OSError as error:
                # Killed processes let go of their files a moment after they were reaped, and so does who looks at them.
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                return

    def _sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            kernel.syncfs(fd)
        finally:
            os.close(fd)
