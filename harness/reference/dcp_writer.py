"""DCP's writer of files, whose errors name what the system said.

`torch.save`, by which DCP writes, ends an archive that could not be written with an error of its own ("unexpected pos 704 vs
598"), and DCP then reports that one: whether the disk is full, over quota or broken is lost on the way to the other ranks.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter


class PlainFileSystem(FileSystem):
    """Raises the system's error in the place of one that was raised because of it."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file for DCP.

        Raises:
            OSError: The system refused to open, write or close it.
        """
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except Exception as error:
            first = system_error(error)
            if first is None or first is error:
                raise
            raise first from error


def system_error(error: BaseException) -> OSError | None:
    """Return the system's error that this one comes of, itself if it is one; None where there is none."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        if isinstance(one, OSError):
            return one
        seen.add(id(one))
        one = one.__cause__ or one.__context__
    return None


class PlainWriter(FileSystemWriter):
    """Writes one file per rank, and syncs it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, thread_count=1)
        self.fs = PlainFileSystem()
