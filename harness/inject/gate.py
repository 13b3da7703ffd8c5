"""The gate: every file operation of every rank stops here until it is answered.

Fault model: a rank is an unmodified process tree whose file-changing system calls wait (seccomp user notification). One
supervisor thread answers for all ranks, so there is one total order of operations; an answer is "go on", "you got this
error", "you got this result" (after the gate itself did part or all of the work), or none at all (the rank is killed
while the call has not happened).
Not covered: stores through `mmap`, `io_uring` (refused), files written by a process outside the tree. Whether a call
that went on succeeded is not seen; what it was asked to do is.
Responsible for: receiving, decoding, and the mechanics of an answer. What to answer is the decision of a `decide`
function (`harness.inject.arming`).
Source: seccomp_unotify(2).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.inject import descriptors, kernel, process
from harness.inject.kernel import Notification
from harness.inject.operation import Operation
from harness.inject.syscalls import CALLS, this_architecture

_MOST_OUTSIDE = 200
_CHANGES_LINKS = ("symlink", "rename", "unlink", "rmdir", "mkdir")  # what is behind a path may be another directory afterwards
OUTSIDE = ("socket:", "pipe:", "anon_inode:", "/dev/", "/proc/", "/memfd:")


@dataclass
class _Listener:
    fd: int
    rank: int  # -1: a tree of several ranks, looked up per process
    ranks: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)  # by the event log that a process writes


class Gate:
    """Receives the operations of all ranks of one attempt.

    Args:
        root: the watched directory, absolute and resolved.
        logs: absolute path → rank, of the event logs; operations on them are passed to `decide` too.
        texts: absolute paths of logs that are passed to `decide` too, and that any process may write to.
        decide: called for each operation on the watched directory or on an event log; must answer it, or leave it
            unanswered if it has killed or stopped the process.
        unnamed_rank: the rank of a process that was started without a RANK: 0 for a job of one process.

    Attributes:
        escapes: what passed unseen, in words.
        outside: files elsewhere that were opened to be written, the first ones.
    """

    def __init__(
        self,
        root: str,
        logs: dict[str, int],
        decide: Callable[[Operation], None],
        unnamed_rank: int = -1,
        texts: frozenset[str] = frozenset(),
    ) -> None:
        self.root, self.logs, self.decide, self.unnamed_rank, self.texts = root, logs, decide, unnamed_rank, texts
        self.num_notifications = 0
        self.escapes: list[str] = []
        self.outside: list[str] = []
        self._listeners: dict[int, _Listener] = {}
        self._calls = {n: call for call in CALLS if (n := this_architecture().numbers.get(call.name)) is not None}
        self._directories: dict[str, str] = {}

    def add(self, fd: int, rank: int) -> None:
        """Takes over a listener; it is closed by `remove` or `close`."""
        kernel.wake_synchronously(fd)
        self._listeners[fd] = _Listener(fd, rank)

    def remove(self, fd: int) -> None:
        """Closes a listener whose processes are gone."""
        if self._listeners.pop(fd, None) is not None:
            os.close(fd)

    def close(self) -> None:
        """Closes all listeners; calls that still wait fail with ENOSYS."""
        for fd in list(self._listeners):
            self.remove(fd)

    def __contains__(self, fd: int) -> bool:
        return fd in self._listeners

    def handle(self, fd: int) -> None:
        """Answers the next waiting call of this listener."""
        notification = kernel.receive(fd)
        if notification is None:
            return
        self.num_notifications += 1
        listener = self._listeners[fd]
        try:
            operation = self._decode(listener, notification)
        except (OSError, ValueError):
            # The process died while it was looked at, or passed an address that it does not own: the kernel's own
            # answer is the right one.
            operation = None
        if operation is None:
            kernel.let_run(fd, notification)
        elif operation.call.operation == "dup":
            self._copy(operation)
        else:
            self.decide(operation)
            if operation.call.operation in _CHANGES_LINKS:
                self._directories.clear()

    def _copy(self, operation: Operation) -> None:
        try:
            descriptors.copy(operation)
        except descriptors.EscapeError as escape:
            self.escapes.append(f"rank {operation.rank}: {escape}")
        except OSError:
            operation.let_run()  # the process is gone, or over its limit of open files: the kernel's answer is right

    def _decode(self, listener: _Listener, notification: Notification) -> Operation | None:
        """The operation, or None if it concerns neither the watched directory nor an event log."""
        call = self._calls[notification.number]
        thread = notification.thread
        paths = process.call_paths(thread, call, notification.arguments) or [self.root]  # sync(2) names nothing
        if call.fd is not None and (paths[0].startswith(OUTSIDE) or not paths[0].startswith("/")):
            return None
        resolved = tuple(paths) if call.fd is not None else tuple(map(self._resolve, paths))
        names = tuple((path[len(self.root) + 1 :] or ".") if self._inside(path) else None for path in resolved)
        if not any(name is not None for name in names) and resolved[0] not in self.logs and resolved[0] not in self.texts:
            if call.operation == "open" and len(self.outside) < _MOST_OUTSIDE and resolved[0] not in self.outside:
                self.outside.append(resolved[0])
            return None
        pid = process.process_of(thread)
        size_bytes = process.data_size(thread, call, notification.arguments)
        if resolved[0] in self.logs and call.operation == "write":
            listener.told[pid] = self.logs[resolved[0]]
        rank = self._rank(listener, pid)
        return Operation(rank, pid, call, tuple(paths), resolved, names, size_bytes, listener.fd, notification)

    def _resolve(self, path: str) -> str:
        """The path with links on the way followed (the trainer may have been given the directory through one).

        The last name is left as it is: it is what the call is about.
        """
        directory, _, last = path.rpartition("/")
        if last in ("", ".", ".."):
            directory, last = path, ""
        if directory not in self._directories:
            self._directories[directory] = os.path.realpath(directory or "/")
        return f"{self._directories[directory].rstrip('/')}/{last}".rstrip("/")

    def _inside(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def _rank(self, listener: _Listener, pid: int) -> int:
        if listener.rank >= 0:
            return listener.rank
        if pid not in listener.ranks:
            rank = process.rank_in_environment(pid)
            if rank is None:  # not remembered: a launcher forks first and gives the rank with the exec
                # Ranks that one process has forked learn theirs from it, which nobody sees; but each writes its own log.
                told = next((one for one in process.ancestry(pid) if one in listener.told), None)
                return self.unnamed_rank if told is None else listener.told[told]
            listener.ranks[pid] = rank
        return listener.ranks[pid]
