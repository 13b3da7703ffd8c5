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
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from harness.reference.errors import CheckpointError, mismatch

BUFFER_SIZE_BYTES = 65536
PARALLEL_BYTES = 1 << 20  # shorter pieces are not worth a second thread
WRITE_BACK_BYTES = 8 << 20
TEMPORARY_SUFFIX = ".tmp"
SYNC_FILES = True  # only the planted defect `no-fsync` says no
SYNC_DIRECTORIES = True  # and only `no-directory-fsync` says no to this
_FOOTER = re.compile(rb"\nckpt\.v1 size=(\d{20}) sha256=([0-9a-f]{64})\n")
_FOOTER_SIZE_BYTES = 1 + len("ckpt.v1 size=") + 20 + len(" sha256=") + 64 + 1


class HashingWriter(io.RawIOBase):
    """A write-only file that counts and hashes what passes through it.

    Neither waits for the other: a second thread hashes large pieces, and what follows them, while this one goes on writing,
    and the kernel is asked to write to disk what lies in its cache already, or it would begin with that only at the fsync.

    Args:
        raw: The file below, unbuffered.
        pool: Where to hash: one thread, since the order matters. Without, this thread hashes.
        lasting: Addresses, start and end, of memory that stays as it is until `sha256` has been called. A large piece outside
            of them is hashed before `write` returns, since its memory is then the caller's again.

    Attributes:
        size_bytes: Bytes written.
        error: The first error of a write. Everything written after it is dropped: `torch.save`, and the buffer in
            front of this object, try to write their rest once more while they are torn down, and would put a second
            error in the place of the first.
    """

    def __init__(
        self,
        raw: io.RawIOBase | BinaryIO,
        pool: ThreadPoolExecutor | None = None,
        lasting: Collection[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self._pool = pool
        self._raw = raw
        self._lasting = lasting
        self._hash = hashlib.sha256()
        self._hashing: Future[None] | None = None
        self._handed_on_bytes = 0
        self.size_bytes = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        """Return True: it is a file to write."""
        return True

    def write(self, data: Any) -> int:
        """Write all of a bytes-like object and return its size; a short write of the kernel is continued."""
        view = memoryview(data).cast("B")
        if self.error is not None:
            return len(view)
        borrowed = self._start_hashing(view)
        done = 0
        try:
            while done < len(view):
                done += self._raw.write(view[done:]) or 0
        except OSError as error:
            self.error = error
            raise
        finally:
            if borrowed:
                self._hashed()
        self.size_bytes += len(view)
        if self.size_bytes - self._handed_on_bytes >= WRITE_BACK_BYTES:
            start_write_back(self._raw, self._handed_on_bytes, self.size_bytes)
            self._handed_on_bytes = self.size_bytes
        return len(view)

    def _start_hashing(self, view: memoryview) -> bool:
        """Hash a piece now or soon; return whether its memory is still needed and may not last."""
        large = len(view) >= PARALLEL_BYTES
        if self._pool is None or not (large or self._hashing):
            self._hash.update(view)
            return False
        # The thread does the rest too from now on, for the order's sake; of what is small it gets a copy.
        self._hashing = self._pool.submit(self._hash.update, view if large else bytes(view))
        return large and not self._lasts(view)

    def _lasts(self, view: memoryview) -> bool:
        start = int(np.frombuffer(view, np.uint8).ctypes.data)
        return any(first <= start and start + len(view) <= end for first, end in self._lasting)

    def _hashed(self) -> None:
        if self._hashing is not None:
            self._hashing.result()

    def sha256(self) -> str:
        """Return the hex digest of what was written so far."""
        self._hashed()
        return self._hash.hexdigest()


def start_write_back(file: io.RawIOBase | BinaryIO, start: int, end: int) -> None:
    """Have the kernel begin to write to disk what its cache holds of a file; no promise of anything, which is fsync's.

    Linux does so when it is told that this part of the file will not be needed again: it drops what is on disk already, and
    begins to write what is not (mm/fadvise.c). `sync_file_range` would say it plainly, but Python does not have it.

    Args:
        file: Open; one that is no file of the system's is left alone.
        start: First byte.
        end: The byte after the last.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put a file's name into the errors of calls that know its descriptor only (write, fsync), or nobody knows what failed."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable (creations, renames, removals).

    Raises:
        OSError: The directory is gone or the disk reports an error; the text names the directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if SYNC_DIRECTORIES:
            with naming(directory):
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
        OSError: From any of the calls, naming the file; the temporary file is removed first.
    """
    try:
        # Opening unbuffered: a buffer that still held data after an error would try to write it once more on close.
        with temporary.open("xb", buffering=0) as file, naming(temporary):
            write(cast("BinaryIO", file))
            if SYNC_FILES:
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
    with ThreadPoolExecutor(max_workers=1) as pool:  # its thread starts with the first large piece
        return _write_payload(payload, HashingWriter(file, pool, list(_memory_of(payload))))


def _memory_of(payload: Any) -> Iterator[tuple[int, int]]:
    """Yield where the payload's large tensors lie in this machine's memory: they live as long as it does.

    `torch.save` writes whole storages, those of other devices from a copy that it drops at once.
    """
    if type(payload) in (Tensor, Parameter):  # others may have their memory elsewhere
        storage = payload.untyped_storage()
        if storage.device.type == "cpu" and storage.nbytes() >= PARALLEL_BYTES:
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    elif isinstance(payload, Mapping):
        for value in payload.values():
            yield from _memory_of(value)
    elif isinstance(payload, (list, tuple)):
        for value in payload:
            yield from _memory_of(value)


def _write_payload(payload: Any, hashed: HashingWriter) -> tuple[int, str]:
    buffered = io.BufferedWriter(hashed, BUFFER_SIZE_BYTES)
    try:
        with _without_crc32():
            torch.save(payload, buffered)
        buffered.flush()
        buffered.write(f"\nckpt.v1 size={hashed.size_bytes:020d} sha256={hashed.sha256()}\n".encode())
        buffered.flush()
    except Exception as error:
        if hashed.error is None or error is hashed.error:
            raise
        raise hashed.error from error  # torch.save words a full disk as "unexpected pos" and hides the errno
    return hashed.size_bytes, hashed.sha256()


@contextlib.contextmanager
def _without_crc32() -> Iterator[None]:
    """Leave out the zip archive's own checksums: `torch.load` does not look at them, and the line at the end has a better one."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def read_payload(path: Path, *, mmap: bool = False, unsafe: bool = False, checksum: bool = True) -> Any:
    """Read what `atomic_save` wrote: first check every byte, then decode.

    Args:
        path: The file.
        mmap: Check the file in one pass and map its tensors, instead of reading all of it into memory and decoding those
            very bytes.
        unsafe: A planted defect: let code in the file run.
        checksum: Compare the checksum; not to do so is a planted defect.

    Raises:
        CheckpointError: The file is missing, cut short, or altered; the text says what was expected and found.
        OSError: The file cannot be read.
    """
    if not mmap:
        return decode_payload(read_bytes(path), path, unsafe=unsafe, checksum=checksum)
    try:
        with path.open("rb") as file:
            size_bytes = max(0, file.seek(0, os.SEEK_END) - _FOOTER_SIZE_BYTES)
            file.seek(0)
            digest = _digest_of(file, size_bytes)
            check_footer(file.read(), size_bytes, digest, path)
    except FileNotFoundError:
        raise mismatch("file missing", path, "a file", "none") from None
    return load_trusted_shape(path, path, mmap=True, unsafe=unsafe)


def _digest_of(file: BinaryIO, size_bytes: int) -> str:
    digest = hashlib.sha256()
    while size_bytes:
        piece = file.read(min(size_bytes, 1 << 20))
        if not piece:
            break
        digest.update(piece)
        size_bytes -= len(piece)
    return digest.hexdigest()


def read_bytes(path: Path) -> bytes:
    """Read a file that must exist.

    Raises:
        CheckpointError: It does not, or is no regular file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, a directory is no checkpoint
            raise mismatch("file missing", path, "a regular file", stat.filemode(path.stat().st_mode))
        return path.read_bytes()
    except FileNotFoundError:
        raise mismatch("file missing", path, "a file", "none") from None


def decode_payload(data: bytes, path: Path, *, unsafe: bool = False, checksum: bool = True) -> Any:
    """Check footer and checksum of a file's content and decode it; see `read_payload`."""
    body, footer = data[:-_FOOTER_SIZE_BYTES], data[-_FOOTER_SIZE_BYTES:]
    if checksum:
        check_footer(footer, len(body), hashlib.sha256(body).hexdigest(), path)
    return load_trusted_shape(io.BytesIO(data), path, unsafe=unsafe)


def check_footer(footer: bytes, size_bytes: int, sha256: str, path: Path) -> None:
    """Raise `CheckpointError` unless the line at the end of a file fits what stands before it.

    Args:
        footer: The last bytes of the file.
        size_bytes: Size of all before them.
        sha256: Checksum of all before them, hex.
        path: The file, for the text.
    """
    parsed = _FOOTER.fullmatch(footer)
    if parsed is None:
        found = f"{size_bytes + len(footer)} bytes without one"
        raise mismatch("checksum line missing (truncated or not a checkpoint)", path, "a line at the end", found)
    if int(parsed[1]) != size_bytes:
        raise mismatch("size mismatch", path, f"{int(parsed[1])} bytes", f"{size_bytes} bytes")
    if parsed[2].decode() != sha256:
        raise mismatch("sha256 mismatch", path, parsed[2].decode(), sha256)


def load_trusted_shape(source: BinaryIO | Path, path: Path, *, mmap: bool = False, unsafe: bool = False) -> Any:
    """Decode with `torch.load(weights_only=True)`: plain types and tensors, never code; `unsafe` is a planted defect.

    Raises:
        CheckpointError: It is no such payload.
    """
    try:
        return torch.load(source, map_location="cpu", weights_only=not unsafe, mmap=mmap)
    except Exception as error:
        raise CheckpointError(f"cannot decode: {path}: expected a torch.save archive, found {error}") from error
