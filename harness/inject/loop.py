"""A loop device: a file as a disk.

Responsible for: getting a free one, and that none is left behind: the kernel detaches it when its last user is gone
(LO_FLAGS_AUTOCLEAR), whichever way that user went. Policy-free.
Source: loop(4); include/uapi/linux/loop.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_CONTROL = "/dev/loop-control"
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR = 4
# struct loop_config: fd and block size, then a loop_info64 (of which only lo_flags is set), then 64 reserved bytes.
_CONFIG = struct.Struct("=II 5Q 3I I 64s 64s 32s 2Q 64x")
_TRIES = 20  # another process may take the free device first


class LoopDevice:
    """A loop device over an open file.

    Args:
        image: descriptor of the file, open for reading and writing. The device keeps the file alive, even without a name.

    Attributes:
        path: of the device.

    Raises:
        OSError: not allowed (EACCES, EPERM), no loop devices here (ENOENT), or none is free (EBUSY).
    """

    def __init__(self, image: int) -> None:
        for _ in range(_TRIES):
            control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
            try:
                self.path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            finally:
                os.close(control)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            config = _CONFIG.pack(image, 0, 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"", b"", b"", 0, 0)
            try:
                fcntl.ioctl(self._fd, _CONFIGURE, config)
            except OSError as error:
                self.close()
                if error.errno != errno.EBUSY:
                    raise
            else:
                return
        raise OSError(errno.EBUSY, f"no loop device was free in {_TRIES} tries")

    def close(self) -> None:
        """Detaches it, as soon as nothing is mounted from it; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
