"""What this machine can do: each ability that the harness uses, tried for real, with what is lost without it.

Responsible for: trying. Nothing is guessed from version numbers; a check forks a child, does the thing, and reports.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.errors import CapabilityError
from harness.fault import FILESYSTEMS
from harness.inject import kernel, power
from harness.inject.bpf import FIRST_WATCHED_FD
from harness.inject.disk import SmallDisk, room_bytes
from harness.inject.install import install
from harness.inject.syscalls import this_architecture

_DEADLINE_S = 60.0
_PROBE_BYTES = b"seen from outside"


@dataclass(frozen=True)
class Check:
    """One ability: what it is for, and what is lost without it; `required` if no case can run then."""

    name: str
    purpose: str
    lost: str
    try_it: Callable[[], str]
    required: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a check; `detail` is what was seen."""

    check: Check
    works: bool
    detail: str


def run_checks() -> list[Result]:
    """Tries everything; never raises for an ability that is missing."""
    return [_run(check) for check in CHECKS]


def _run(check: Check) -> Result:
    try:
        return Result(check, True, check.try_it())
    except (OSError, CapabilityError, RuntimeError, subprocess.SubprocessError) as error:
        return Result(check, False, str(error))


class _Gated:
    """A forked child behind a filter of its own, stopped at its first write."""

    def __enter__(self) -> _Gated:
        self.folder = Path(tempfile.mkdtemp(prefix="harness-doctor-"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_DEADLINE_S)
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _child(theirs, supervisor, self.folder / "file")
        theirs.close()
        with ours:
            data, fds, _, _ = socket.recv_fds(ours, 4096, 1)
        message = json.loads(data) if data else {"error": "the child ended without a word"}
        if not fds:
            self.__exit__()
            raise RuntimeError(message["error"])
        self.listener = fds[0]
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "listener"):
            os.close(self.listener)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)


def _child(control: socket.socket, supervisor: int, path: Path) -> None:
    try:
        signal.alarm(int(_DEADLINE_S))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(fd, FIRST_WATCHED_FD)
        install(control, 0, supervisor, reads=False, read_opens=False)
        while True:
            os.write(FIRST_WATCHED_FD, _PROBE_BYTES)
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
    finally:
        os._exit(0)


def _notification() -> str:
    with _Gated() as gated:
        times = []
        for _ in range(200):
            call = kernel.receive(gated.listener)
            if call is None:
                raise RuntimeError("the child died at its first stopped call")
            times.append(time.perf_counter())
            kernel.let_run(gated.listener, call)
        per_call_us = (times[-1] - times[0]) / (len(times) - 1) * 1e6
        return f"{platform.machine()}, Linux {platform.release()}, {per_call_us:.0f} µs a stopped call"


def _wake_up() -> str:
    with _Gated() as gated:
        if not kernel.wake_synchronously(gated.listener):
            raise RuntimeError("the kernel does not know SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (it came with Linux 6.6)")
    return "the waiting thread is woken on the answering processor"


def _memory() -> str:
    with _Gated() as gated:
        call = kernel.receive(gated.listener)
        if call is None or kernel.read_memory(call.thread, call.arguments[1], call.arguments[2]) != _PROBE_BYTES:
            raise RuntimeError("the memory of a stopped process could not be read")
    return "the bytes of a stopped write were read"


def _descriptor() -> str:
    with _Gated() as gated:
        call = kernel.receive(gated.listener)
        if call is None:
            raise RuntimeError("the child died")
        os.close(kernel.duplicate_descriptor(gated.pid, call.arguments[0]))
    return "a descriptor of a stopped process was duplicated"


def _in_child(action: Callable[[], str]) -> str:
    """Runs something that changes the process for good in a child, and brings its answer back."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            os.write(write, action().encode())
            code = 0
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise RuntimeError(text or f"the child ended with {status}")
    return text


def _small_disk() -> str:
    with tempfile.TemporaryDirectory(prefix="harness-doctor-") as folder:

        def fill() -> str:
            disk = SmallDisk(Path(folder), 65536)
            try:
                (Path(folder) / "file").write_bytes(bytes(1 << 20))
            except OSError as error:
                return f"a tmpfs of 64 KiB, mounted as {disk.how}, was filled: {error.strerror}"
            raise OSError(0, "1 MiB went into a file system of 64 KiB")

        return _in_child(fill)


def _power(filesystem: str) -> str:
    with tempfile.TemporaryDirectory(prefix="harness-doctor-") as folder:
        root = Path(folder, "disk")
        root.mkdir()

        def cut() -> str:
            disk = power.RealDisk(root, filesystem, Path(folder))
            (root / "unsynced").write_bytes(_PROBE_BYTES)
            with (root / "synced").open("wb", buffering=0) as file:
                file.write(_PROBE_BYTES)
                os.fsync(file)
            power.cut(root, filesystem)
            disk.keep()
            if (root / "synced").read_bytes() != _PROBE_BYTES:
                raise OSError(0, f"a synced file did not survive the power cut of {filesystem}")
            lost = not (root / "unsynced").exists() or not (root / "unsynced").stat().st_size
            return f"a synced file survived, the unsynced bytes {'were lost' if lost else 'survived too'}"

        return _in_child(cut)


def _torch() -> str:
    program = (
        "import torch, torch.distributed as d; gloo = 'gloo' if d.is_gloo_available() else 'NO GLOO'; "
        "print(torch.__version__, 'CUDA' if torch.version.cuda else 'CPU', 'build;', gloo)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["import torch failed"])[-1])
    if "NO GLOO" in done.stdout:
        raise RuntimeError(f"torch {done.stdout.strip()}")
    return f"torch {done.stdout.strip()}; imported in {time.monotonic() - started:.1f} s by {sys.executable}"


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    if "lo" not in names:
        raise RuntimeError(f"there is no interface lo, only {', '.join(names) or 'none'}")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
    return "lo"


def _cores() -> str:
    return f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"


def _free_memory() -> str:
    memory = psutil.virtual_memory()
    if memory.available < 2 << 30:
        raise RuntimeError(f"only {memory.available / 2**30:.1f} GiB free; the warm server and four workers want 2")
    return f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"


def _free_disk() -> str:
    room = room_bytes(".")
    if room < 1 << 30:
        raise RuntimeError(f"only {room / 2**30:.1f} GiB free in {Path.cwd()}")
    return f"{room / 2**30:.1f} GiB free here"


def _strace() -> str:
    path = shutil.which("strace")
    if path is None:
        raise RuntimeError("not installed")
    return path


def _architecture() -> str:
    return f"{this_architecture().name}: {len(this_architecture().numbers)} calls"


CHECKS = (
    Check("system call table", "knowing the calls of this processor", "everything", _architecture, required=True),
    Check(
        "seccomp user notification",
        "stopping a rank at an exact file operation",
        "every fault in a running process",
        _notification,
        required=True,
    ),
    Check("synchronous wake-up", "making a stopped call cheap", "speed: a stopped call costs four times as much", _wake_up),
    Check(
        "reading a rank's memory",
        "paths, and the bytes of a write that is cut",
        "every fault in a running process",
        _memory,
        required=True,
    ),
    Check(
        "pidfd_getfd",
        "torn and short writes, faults after a call",
        "those faults; kills before a call still work",
        _descriptor,
        required=True,
    ),
    Check(
        "private mounts and tmpfs",
        "a file system that is really full (`full-disk`)",
        "that fault; `quota` needs nothing",
        _small_disk,
    ),
    *(
        Check(
            f"power of a real {kind} disk",
            f"root, loop devices and mkfs.{kind}: `power-cut on {kind}`",
            "that fault; `power-cut keeping`, the model, needs none of it",
            functools.partial(_power, kind),
        )
        for kind in FILESYSTEMS
    ),
    Check("torch with gloo", "training", "everything", _torch, required=True),
    Check("loopback interface", "gloo between the ranks of this machine", "more than one rank", _loopback, required=True),
    Check("processors", "running cases side by side", "speed only", _cores),
    Check("memory", "the warm server and its ranks", "cases may be ended by the kernel (foreign-death)", _free_memory),
    Check("room for run directories", "event logs and checkpoints", "cases cannot be stored", _free_disk),
    Check("strace", "`harness bench` compares the gate with it", "that one figure", _strace),
)
