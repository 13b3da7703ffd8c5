"""The keeper: the root of one attempt's process tree. Starts the ranks, reports how they end, leaves nothing behind.

Responsible for: forking the ranks (each in a process group of its own, behind the gate), waiting for them, adopting
orphans of theirs, and killing the whole tree when the supervisor is gone: the control socket then reports end of file,
however the supervisor died. If the keeper itself dies, the kernel kills the ranks (PR_SET_PDEATHSIG).
Single-threaded; imports no torch. The same code serves both launches: the warm server forks a keeper, a cold launch
runs this module as a program.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import psutil

from harness.inject import kernel
from harness.inject.disk import SmallDisk
from harness.inject.install import install
from harness.inject.power import RealDisk
from harness.launch.spec import MESSAGE_BYTES, LaunchSpec, ProcessSpec

# Helpers of a training process (multiprocessing's resource tracker, for one) end by themselves once it is gone.
_SETTLE_S = 2.0
_EXIT_NOT_STARTED = 127


class Keeper:
    """Serves one attempt over one control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: dict[int, int] = {}  # process id → rank, while it runs
        self._disk: SmallDisk | RealDisk | None = None

    def run(self) -> None:
        """From the launch request to the end of the last process."""
        data = self._control.recv(MESSAGE_BYTES + 1)
        if not data:
            return
        if data == b"quit":
            # Asked of the server, whose copy this is; our own end is the answer.
            os.kill(os.getppid(), signal.SIGTERM)
            return
        spec = LaunchSpec.from_message(data)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if not self._prepare_disk(spec):
            return
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for process in spec.processes:
            self._start(spec, process)
        self._wait(wake_read)
        self._finish()

    def _prepare_disk(self, spec: LaunchSpec) -> bool:
        if not spec.disk_path:
            return True
        path = Path(spec.disk_path)
        try:
            if spec.disk_kind == "tmpfs":
                self._disk = SmallDisk(path, spec.disk_bytes)
            else:
                self._disk = RealDisk(path, spec.disk_kind, Path(spec.directory))
        except OSError as error:
            self._send("refused", what="disk", kind=spec.disk_kind, errno=error.errno, error=str(error))
            return False
        self._send("disk", how=self._disk.how, kind=spec.disk_kind, pid=os.getpid())
        return True

    def _start(self, spec: LaunchSpec, process: ProcessSpec) -> None:
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(spec, process, self._control, keeper)
        self._ranks[pid] = process.rank
        self._send("started", rank=process.rank, pid=pid)

    def _wait(self, wake: int) -> None:
        """Reaps until no process of the attempt is left; kills all of them when the supervisor says so or is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            while self._ranks:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        if not self._is_asked_to_kill():
                            self._kill_tree()
                            os._exit(0)  # nobody is left to report to
                        self._kill_tree()
                    else:
                        os.read(wake, 4096)
                self._reap()

    def _is_asked_to_kill(self) -> bool:
        """Whether the supervisor asks for it; else it is gone, be it with a message of ours that it had not read."""
        try:
            return self._control.recv(MESSAGE_BYTES) == b"kill"
        except ConnectionResetError:
            return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)
            if rank is not None:  # otherwise an adopted orphan
                self._send(
                    "exited",
                    rank=rank,
                    pid=pid,
                    status=status,
                    max_memory_kib=usage.ru_maxrss,
                    cpu_s=usage.ru_utime + usage.ru_stime,
                )

    def _finish(self) -> None:
        leftover = self._leftover()
        if leftover:
            self._kill_tree()
        error = ""
        if self._disk is not None:
            try:
                self._disk.keep()
            except OSError as failure:
                error = f"the files of the attempt's own disk could not be kept: {failure}"
        self._send("done", leftover=leftover, error=error)

    def _leftover(self) -> list[tuple[int, str]]:
        """Processes that outlive all ranks, after a moment to end by themselves."""
        deadline = time.monotonic() + _SETTLE_S
        pause = 0.001
        while descendants := _descendants():
            if time.monotonic() > deadline:
                return [(process.pid, _name(process)) for process in descendants]
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            self._reap()
        return []

    def _kill_tree(self) -> None:
        # A process may fork while the list is read, so until none is left.
        deadline = time.monotonic() + 10
        while (descendants := _descendants()) and time.monotonic() < deadline:
            for process in descendants:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.001)
            self._reap()
        self._reap()

    def _send(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(json.dumps({"event": event, **fields}).encode())


def _descendants() -> list[psutil.Process]:
    """All living processes below this one; zombies are waiting to be reaped, not living."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return "?"


def _become(spec: LaunchSpec, process: ProcessSpec, control: socket.socket, keeper: int) -> NoReturn:
    """In the forked child: turns it into the training process. Never returns into the keeper's code."""
    code = _EXIT_NOT_STARTED
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(code)  # the keeper died before the kernel was told
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        _redirect(process)
        os.chdir(spec.directory)
        for name in spec.unset:
            os.environ.pop(name, None)
        os.environ.update(process.environment)
        if spec.gated:
            _enter_gate(spec, process, control)
        control.close()
        if process.entry:
            code = _call(process)
        else:
            os.execvp(process.arguments[0], process.arguments)  # noqa: S606 - no shell is wanted
    except FileNotFoundError as error:
        sys.stderr.write(f"harness: cannot start {process.arguments[0]!r}: {error}\n")
    except BaseException:  # noqa: BLE001 - the child must never run on in the keeper's stack, whatever happened
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(process: ProcessSpec) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for target, path in ((1, process.stdout), (2, process.stderr)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, target)
        os.close(fd)


def _enter_gate(spec: LaunchSpec, process: ProcessSpec, control: socket.socket) -> None:
    try:
        install(control, process.rank, spec.supervisor, reads=spec.reads, read_opens=spec.read_opens, output=spec.output)
    except OSError as error:
        message = {"event": "refused", "what": "gate", "errno": error.errno, "error": str(error)}
        control.send(json.dumps(message).encode())
        os._exit(_EXIT_NOT_STARTED)


def _call(process: ProcessSpec) -> int:
    module, _, function = process.entry.partition(":")
    result = getattr(importlib.import_module(module), function)(list(process.arguments))
    return int(result or 0)


def main() -> None:
    """`python -m harness.launch.keeper FD`: serves the control socket that was inherited as descriptor FD."""
    # A session of its own: a Ctrl-C on the terminal is for the supervisor, which then closes the socket.
    with contextlib.suppress(PermissionError):
        os.setsid()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        Keeper(control).run()


if __name__ == "__main__":
    main()
