"""A file operation that waits at the gate for an answer. The data, and the three plain answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.inject import kernel, process
from harness.inject.kernel import Notification
from harness.inject.syscalls import Call


@dataclass(frozen=True)
class Operation:
    """A file operation that waits for an answer.

    Attributes:
        rank: whose it is; -1 if it belongs to a launcher.
        pid: the process.
        call: which system call.
        paths: absolute paths as the kernel would resolve them (links and dots are still in them), source first.
        resolved: the same with the links on the way followed.
        names: the same relative to the watched directory ("." is the directory itself), None where outside.
        size_bytes: bytes that it means to transfer, 0 for calls without data.
    """

    rank: int
    pid: int
    call: Call
    paths: tuple[str, ...]
    resolved: tuple[str, ...]
    names: tuple[str | None, ...]
    size_bytes: int
    listener: int = field(repr=False)
    notification: Notification = field(repr=False)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The six arguments of the call."""
        return self.notification.arguments

    @property
    def own_paths(self) -> list[str]:
        """The paths as this process can reach them: the other one may live in a mount namespace of its own."""
        return [f"/proc/{self.pid}/root{path}" for path in self.paths]

    def read_data(self, limit_bytes: int) -> bytes:
        """The first bytes that a write passes. Raises: OSError if the process is gone."""
        return b"".join(process.read_data(self.notification.thread, self.call, self.arguments, limit_bytes))

    def let_run(self) -> None:
        """The kernel does the call as if nothing were there."""
        kernel.let_run(self.listener, self.notification)

    def fail(self, errno_number: int) -> None:
        """The call does not happen and reports this error."""
        kernel.answer(self.listener, self.notification, errno_number=errno_number)

    def give(self, value: int) -> None:
        """The call does not happen (again): the gate has done it; the caller sees this result."""
        kernel.answer(self.listener, self.notification, value=value)
