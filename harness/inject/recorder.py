"""Doing every operation in the kernel's stead, one after the other, and writing down what it did and with which data.

Responsible for: the `initial`, `did` and `unfollowed` records of a traced attempt (docs/event-log.md) and its data file. Each
call is done here and its caller is given the result, so that the order of the records is the order in which things happened,
over all ranks. Data is kept by content: what was written before is not kept again.
Cost: one copy out of the process, one sha256 and two writes, about 2 s a GB (`harness bench` says what it is here).
Not covered: calls that cannot be done from outside (`harness.inject.effects`): they are let through and written down as
`unfollowed`; a file that is moved in from outside the directory is taken as it is at that moment.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from harness.inject import descriptors
from harness.inject.effects import CannotPerformError, Witness, perform
from harness.inject.operation import Operation
from harness.store import RecordWriter
from harness.trace import DATA_FILE

_PIECE_BYTES = 1 << 20


class DataFile:
    """Appends contents to a file, each content once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._known: dict[tuple[int, str], int] = {}
        self._end = 0

    def begin(self) -> _Content:
        """A new content; `_Content.end` says where it is."""
        return _Content(self)

    def append(self, position: int, piece: bytes) -> None:
        """Writes behind the last content that is kept."""
        done = 0
        while done < len(piece):
            done += os.pwrite(self._file.fileno(), piece[done:], self._end + position + done)

    def keep(self, size_bytes: int, sha256: str) -> list[Any]:
        """Keeps what was just appended, unless it is there already. Returns: start, size, sha256."""
        key = (size_bytes, sha256)
        if key not in self._known:
            self._known[key] = self._end
            self._end += size_bytes
        return [self._known[key], size_bytes, sha256]

    def close(self) -> None:
        """Closes the file, without what was written last and is not kept."""
        self._file.truncate(self._end)
        self._file.close()


class _Content:
    def __init__(self, file: DataFile) -> None:
        self._file, self._hash, self._size = file, hashlib.sha256(), 0

    def add(self, piece: bytes) -> None:
        """One more piece."""
        self._file.append(self._size, piece)
        self._hash.update(piece)
        self._size += len(piece)

    def end(self) -> list[Any]:
        """Where the content is."""
        return self._file.keep(self._size, self._hash.hexdigest())


class _Facts(Witness):
    """What is seen while one call is done."""

    def __init__(self, data: DataFile) -> None:
        self.facts: dict[str, Any] = {}
        self._data = data
        self._content: _Content | None = None
        self._end: int | None = None  # of a file that is open for appending

    def file(self, fd: int) -> None:
        """The open file that a call works on."""
        facts = os.fstat(fd)
        self.facts |= {"inode": facts.st_ino, "mode": stat.S_IMODE(facts.st_mode)}
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if flags & os.O_DSYNC:
            self.facts["synced"] = True
        self._end = facts.st_size if flags & os.O_APPEND else None

    def writes_at(self, offset: int) -> None:
        """Where a write begins."""
        self.facts["offset"] = offset if self._end is None else self._end

    def resized(self, size_bytes: int) -> None:
        """The new length of a file."""
        self.facts["offset"] = size_bytes

    def data(self, piece: bytes) -> None:
        """Bytes that have landed."""
        if self._content is None:
            self._content = self._data.begin()
        self._content.add(piece)

    def path(self, path: str) -> None:
        """A file that a call works on by name, looked at where it is."""
        facts = os.lstat(path)
        self.facts |= {"inode": facts.st_ino, "mode": stat.S_IMODE(facts.st_mode)}
        if stat.S_ISLNK(facts.st_mode):
            self.facts["target"] = os.readlink(path)  # noqa: PTH115

    def opened(self, fd: int, *, existed: bool, emptied: bool) -> None:
        """A file that was opened for writing."""
        self.file(fd)
        self.facts |= {"created": not existed} | ({"emptied": True} if existed and emptied else {})

    def exchanged(self) -> None:
        """A rename swapped two names."""
        self.facts["exchanged"] = True

    def finish(self) -> dict[str, Any]:
        """All of it, as fields of a record."""
        if self._content is not None:
            self.facts["data"] = self._content.end()
        return self.facts


class Recorder:
    """Writes the trace of one attempt.

    Args:
        folder: of the attempt, for the data file.
        log: its `operations.jsonl`.
    """

    def __init__(self, folder: Path, log: RecordWriter) -> None:
        self._data = DataFile(folder / DATA_FILE)
        self._log = log
        self._unfollowed: set[str] = set()

    def begin(self, root: Path) -> None:
        """Writes down what is there, before anything is done.

        Args:
            root: the checkpoint directory as the ranks see it, since files are known by their inodes.
        """
        for path in [root, *sorted(root.rglob("*"))]:
            self._initial(root, path)

    def close(self) -> None:
        """Closes the data file."""
        self._data.close()

    def proceed(self, operation: Operation, n: int) -> None:
        """Does the call and gives its caller the result. Raises: OSError where it fails; the caller has no answer yet."""
        facts = _Facts(self._data)
        try:
            if operation.call.operation == "open":
                handed = descriptors.hand_over(operation, facts)
                if handed:
                    self._did(n, facts)
                return
            result = perform(operation, None, facts)
        except CannotPerformError as error:
            self.unfollowed(f"{error} on {operation.names[0] or operation.paths[0]} cannot be followed")
            operation.let_run()
            return
        except OSError as error:
            self._did(n, facts, error)
            raise
        self._moved_in(operation, facts)
        self._did(n, facts)
        operation.give(result)

    def perform(self, operation: Operation, n: int, limit_bytes: int | None) -> int:
        """Does the call, or a part of it, and leaves the answer to the caller.

        Raises:
            CannotPerformError, OSError: as `harness.inject.effects.perform`.
        """
        facts = _Facts(self._data)
        result = perform(operation, limit_bytes, facts)
        self._moved_in(operation, facts)
        self._did(n, facts)
        return result

    def unfollowed(self, what: str) -> None:
        """Writes down once what a trace cannot follow."""
        if what not in self._unfollowed:
            self._unfollowed.add(what)
            self._log.write("unfollowed", what=what)

    def _did(self, n: int, facts: _Facts, error: OSError | None = None) -> None:
        fields = facts.finish()
        if error is not None:
            fields["error"] = errno.errorcode.get(error.errno or 0, "EIO")
        self._log.write("did", n=n, **fields)

    def _moved_in(self, operation: Operation, facts: _Facts) -> None:
        """A file that was written elsewhere: its content is looked at now; whether it was synced, nobody has seen."""
        if operation.call.operation not in ("rename", "link") or operation.names[0] is not None:
            return
        where = f"{operation.paths[0]} was written elsewhere and moved in as {operation.names[-1]}"
        target = Path(operation.own_paths[-1])
        if operation.call.operation == "link" or not stat.S_ISREG(target.lstat().st_mode):
            self.unfollowed(f"{where}: nobody saw what is in it")
            return
        with target.open("rb", buffering=0) as file:
            facts.file(file.fileno())
            while piece := file.read(_PIECE_BYTES):
                facts.data(piece)
        if where not in self._unfollowed:
            self._unfollowed.add(where)
            self._log.write(
                "assumed", what=f"{where}: nobody saw whether it was synced, so power cuts are taken to leave its content"
            )

    def _initial(self, root: Path, path: Path) -> None:
        facts = path.lstat()
        fields: dict[str, Any] = {"path": str(path.relative_to(root)), "inode": facts.st_ino, "mode": stat.S_IMODE(facts.st_mode)}
        if stat.S_ISDIR(facts.st_mode):
            fields["kind"] = "dir"
        elif stat.S_ISLNK(facts.st_mode):
            fields |= {"kind": "link", "target": str(path.readlink())}
        elif stat.S_ISREG(facts.st_mode):
            content = self._data.begin()
            with path.open("rb", buffering=0) as file:
                while piece := file.read(_PIECE_BYTES):
                    content.add(piece)
            fields |= {"kind": "file", "data": content.end()}
        else:
            self.unfollowed(f"{fields['path']} is no file, directory or link")
            return
        self._log.write("initial", **fields)
