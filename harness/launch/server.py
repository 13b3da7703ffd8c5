"""The warm server: one process that has imported torch once, and forks a keeper per attempt.

Responsible for: importing what training needs, staying single-threaded (a fork of a process with threads is unsafe), and
ending with its owner: it watches the owner's process and leaves when that is gone, whatever way it went.
Started as `python -m harness.launch.server SOCKET OWNER READY`; the modules to import come after, and more of them, a line each,
by its standard input, which whoever started it closes once he knows them all.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from harness.inject import kernel
from harness.launch import folder
from harness.launch.keeper import Keeper
from harness.launch.warm import PAGES

# How often a server that still imports looks whether its owner is there.
_LOOK_S = 0.5


def preload(modules: list[str]) -> None:
    """Imports the modules, and those that its standard input names; `?` before a name says that it may be missing.

    The heap is then prepared for being shared by forks.

    Raises:
        ImportError: one of the others is missing.
        RuntimeError: importing has started threads.
    """
    _import(modules)
    _import(sys.stdin.read().split())
    # What exists now stays for ever; without this every fork's first collection would copy all of it.
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"the preloaded process has {threads} threads; forking it would be unsafe (set OMP_NUM_THREADS=1)")


def _import(modules: list[str]) -> None:
    for module in modules:
        if module.startswith("?"):
            with contextlib.suppress(Exception):
                importlib.import_module(module[1:])
        else:
            importlib.import_module(module)


@contextlib.contextmanager
def _ending_with(owner: int, session: Path) -> Iterator[None]:
    """Ends this process with its owner while it does something that waits for nobody: an import may take a minute."""

    def look(*_: object) -> None:
        if select.select([owner], [], [], 0)[0]:
            shutil.rmtree(session, ignore_errors=True)
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:  # what is forked later knows nothing of it
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def serve(listening: socket.socket, owner: int) -> None:
    """Forks a keeper for every connection until the owner is gone."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # If a keeper is killed, its orphans come here and are reaped.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    with selectors.DefaultSelector() as selector:
        for fd in (listening.fileno(), owner, wake_read):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if owner in ready:
                return  # keepers see their supervisors' sockets close, or die with this process
            if wake_read in ready:
                os.read(wake_read, 4096)
                _reap()
            if listening.fileno() in ready:
                connection, _ = listening.accept()
                _fork_keeper(connection, listening, owner, selector)
                connection.close()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_keeper(connection: socket.socket, listening: socket.socket, owner: int, selector: selectors.BaseSelector) -> None:
    server = os.getpid()
    if os.fork():
        return
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        os.setsid()
        selector.close()
        listening.close()
        os.close(owner)
        Keeper(connection).run()
    except BaseException:  # noqa: BLE001 - a forked copy must never return into the server's loop
        traceback.print_exc()
    finally:
        os._exit(0)


def main() -> None:
    """The program."""
    path, owner, ready, *modules = sys.argv[1:]
    owner_fd = os.pidfd_open(int(owner))
    folder.hold(Path(path).parent)  # and with it the ranks, which inherit the lock
    os.setsid()
    for name in PAGES:
        os.environ.pop(name, None)
    # What a killed rank leaves among temporary files goes with the session; short, since sockets are made there.
    temporary = Path(path).parent / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    try:
        with _ending_with(owner_fd, Path(path).parent):
            preload(modules)
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), sys.stdin.fileno())
    except (ImportError, RuntimeError) as error:
        os.write(int(ready), f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(64)
        with contextlib.suppress(BrokenPipeError):  # whoever asked was killed meanwhile; the owner may be there
            os.write(int(ready), b"ready")
        os.close(int(ready))
        serve(listening, owner_fd)
    # The owner is gone without a goodbye, so nobody else removes what the session shared.
    shutil.rmtree(Path(path).parent, ignore_errors=True)


if __name__ == "__main__":
    main()
