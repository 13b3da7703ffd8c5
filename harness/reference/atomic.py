"""Writing a file so that a reader sees the old content or the new one, never less, whatever happens in between.

Three things make it so, and each is often left out: the file is fsynced before it gets its name (else the name may
survive a power cut on an empty file), the rename replaces in one step, and the directory is fsynced afterwards (else
the whole save may be gone after a power cut, although `save` had returned).

Not covered: a disk that lies about fsync.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from harness.reference.errors import CheckpointError, mismatch

BUFFER_SIZE_BYTES = 65536
TEMPORARY_SUFFIX = ".tmp"
_FOOTER = re.compile(rb"\nckpt\.v1 size=(\d{20}) sha256=([0-9a-f]{64})\n")
_FOOTER_SIZE_BYTES = 1 + len("ckpt.v1 size=") + 20 + len(" sha256=") + 64 + 1


class HashingWriter(io.RawIOBase):
    """A write-only file that counts and hashes what passes through it.

    Attributes:
        size_bytes: Bytes written.
        error: The first error of a write. Everything written after it is dropped: `torch.save`, and the buffer in
            front of this object, try to write their rest once more while they are torn down, and would put a second
            error in the place of the first.
    """

    def __init__(self, raw: io.RawIOBase | BinaryIO) -> None:
        super().__init__()
        self._raw = raw
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        """Return True: it is a file to write."""
        return True

    def write(self, data: Any) -> int:
        """Write all of a bytes-like object and return its size; a short write of the kernel is continued."""
        view = memoryview(data).cast("B")
        done = len(view) if self.error else 0
        try:
            while done < len(view):
                done += self._raw.write(view[done:]) or 0
        except OSError as error:
            self.error = error
            raise
        self._hash.update(view)
        self.size_bytes += len(view)
        return len(view)

    def sha256(self) -> str:
        """Return the hex digest of what was written so far."""
        return self._hash.hexdigest()


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable (creations, renames, removals).

    Raises:
        OSError: The directory is gone or the disk reports an error.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, whose names are durable; one that exists is left as it is.

    Raises:
        OSError: It could not be made.
    """
    missing = [one for one in (path, *path.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        fsync_directory(one.parent)


def temporary_path(path: Path) -> Path:
    """Return a name that no other writer uses, in the same directory, so that the rename stays on one file system.

    The token comes from the kernel: one from `random` would move the generator that training draws from.
    """
    return path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


def write_durably(path: Path, write: Callable[[BinaryIO], None], temporary: Path) -> None:
    """Write a file under a temporary name, fsync it, rename it to its own, fsync the directory.

    Args:
        path: The final name; an existing file is replaced in one step, and left alone on failure.
        write: Writes the content.
        temporary: Where to write, in the same directory; never left behind.

    Raises:
        OSError: From any of the calls; the temporary file is removed first.
    """
    try:
        # Opening unbuffered: a buffer that still held data after an error would try to write it once more on close.
        with temporary.open("xb", buffering=0) as file:
            write(cast("BinaryIO", file))
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # The first error is the one to report, so one from the clean-up is dropped.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def atomic_save(payload: Any, path: Path, temporary: Path | None = None) -> tuple[int, str]:
    """Save a payload with `torch.save`, atomically and durably, followed by a checksum of all of it.

    The checksum is a line of fixed length after the zip archive: `torch.load(path)` still reads the file, since zip
    archives are found from their end with room for a comment. It is needed: torch checks no checksum on load, so a
    flipped bit inside tensor data would be loaded in silence.

    Args:
        payload: Anything that `torch.load(weights_only=True)` accepts.
        path: The final name.
        temporary: The temporary name, if it must be a certain one; else a unique one.

    Returns:
        Size in bytes and sha256 (hex) of the whole file.

    Raises:
        OSError: The file could not be written; what stood at `path` before still stands there.
    """
    result: list[tuple[int, str]] = []
    write_durably(path, lambda file: result.append(write_payload(payload, file)), temporary or temporary_path(path))
    return result[0]


def write_payload(payload: Any, file: BinaryIO) -> tuple[int, str]:
    """Write payload and footer to an open unbuffered file; return size and sha256 of everything written."""
    hashed = HashingWriter(file)
    buffered = io.BufferedWriter(hashed, BUFFER_SIZE_BYTES)
    try:
        torch.save(payload, buffered)
        buffered.flush()
        buffered.write(f"\nckpt.v1 size={hashed.size_bytes:020d} sha256={hashed.sha256()}\n".encode())
        buffered.flush()
    except Exception as error:
        if hashed.error is None or error is hashed.error:
            raise
        raise hashed.error from error  # torch.save words a full disk as "unexpected pos" and hides the errno
    return hashed.size_bytes, hashed.sha256()


def read_payload(path: Path, *, unsafe: bool = False) -> Any:
    """Read what `atomic_save` wrote: first check every byte, then decode those very bytes; `unsafe` is a planted defect.

    Raises:
        CheckpointError: The file is missing, cut short, or altered; the text says what was expected and found.
        OSError: The file cannot be read.
    """
    return decode_payload(read_bytes(path), path, unsafe=unsafe)


def read_bytes(path: Path) -> bytes:
    """Read a file that must exist.

    Raises:
        CheckpointError: It does not.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise mismatch("file missing", path, "a file", "none") from None


def decode_payload(data: bytes, path: Path, *, unsafe: bool = False) -> Any:
    """Check footer and checksum of a file's content and decode it; see `read_payload`."""
    body, footer = data[:-_FOOTER_SIZE_BYTES], data[-_FOOTER_SIZE_BYTES:]
    parsed = _FOOTER.fullmatch(footer)
    if parsed is None:
        found = f"{len(data)} bytes without one"
        raise mismatch("checksum line missing (truncated or not a checkpoint)", path, "a line at the end", found)
    size_bytes, sha256 = int(parsed[1]), parsed[2].decode()
    if size_bytes != len(body):
        raise mismatch("size mismatch", path, f"{size_bytes} bytes", f"{len(body)} bytes")
    found_sha256 = hashlib.sha256(body).hexdigest()
    if found_sha256 != sha256:
        raise mismatch("sha256 mismatch", path, sha256, found_sha256)
    return load_trusted_shape(data, path, unsafe=unsafe)


def load_trusted_shape(data: bytes, path: Path, *, unsafe: bool = False) -> Any:
    """Decode bytes with `torch.load(weights_only=True)`: plain types and tensors, never code; `unsafe` is a planted defect.

    Raises:
        CheckpointError: The bytes are no such payload.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=not unsafe)
    except Exception as error:
        raise CheckpointError(f"cannot decode: {path}: expected a torch.save archive, found {error}") from error
