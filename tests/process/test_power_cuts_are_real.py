"""Power cuts of real file systems: what ext4 and XFS keep of small programs, that the model has each of it, and no left-overs.

Where this machine cannot do it (no root, no loop devices, no mkfs), each test sees the refusal instead.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from disks import able
from jobs import kept, run_job

from harness.errors import CapabilityError
from harness.fault import FILESYSTEMS
from harness.inject import kernel, power
from harness.inject.disk import private_mounts
from harness.store import Run

OLD, NEW = b"old" * 1000, b"new" * 100_000
HELPERS = """
def put(name, data, sync=False, flags=os.O_TRUNC):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | flags)
    os.write(fd, data)
    if sync:
        os.fsync(fd)
    os.close(fd)
def sync(name):
    fd = os.open(name, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
OLD, NEW = b"old" * 1000, b"new" * 100_000
put("ckpt.pt", OLD, True)
sync(".")
"""
# What a program does before the cut, and what of it is found: on ext4, and on XFS where that is something else. A commit of the
# journal by another file's sync (`other`) makes names durable, and data only where the file system guards it by itself.
TABLE = {
    "replaced without a sync": ("put('tmp', NEW); os.replace('tmp', 'ckpt.pt')", {"ckpt.pt": OLD}, {}),
    "file synced": ("put('tmp', NEW, True); os.replace('tmp', 'ckpt.pt')", {"ckpt.pt": OLD, "tmp": NEW}, {}),
    "file and directory synced": ("put('tmp', NEW, True); os.replace('tmp', 'ckpt.pt'); sync('.')", {"ckpt.pt": NEW}, {}),
    "a new name, journal committed": (
        "put('tmp', NEW); os.replace('tmp', 'new.pt'); put('other', b'x', True)",
        {"ckpt.pt": OLD, "new.pt": b"", "other": b"x"},
        {},
    ),
    "an old name, journal committed": (
        "put('tmp', NEW); os.replace('tmp', 'ckpt.pt'); put('other', b'x', True)",
        {"ckpt.pt": NEW, "other": b"x"},
        {"ckpt.pt": b""},
    ),
    "written anew in place, journal committed": (
        "put('ckpt.pt', NEW); put('other', b'x', True)",
        {"ckpt.pt": NEW, "other": b"x"},
        {},
    ),
    "appended, journal committed": (
        "put('ckpt.pt', NEW, flags=os.O_APPEND); put('other', b'x', True)",
        {"ckpt.pt": OLD + bytes(4096 - len(OLD)), "other": b"x"},
        {"ckpt.pt": OLD},
    ),
    "one guarded, one not": (
        "put('a', NEW); put('b', NEW); os.replace('a', 'ckpt.pt'); put('other', b'x', True); put('c', NEW)",
        {"ckpt.pt": NEW, "b": b"", "other": b"x"},
        {"ckpt.pt": b""},
    ),
    "deep names, only the directory synced": (
        "os.mkdir('d'); put('d/a', NEW); put('d/b', NEW, True); os.rename('d', 'e'); sync('e')",
        {"ckpt.pt": OLD, "e/a": b"", "e/b": NEW},
        {},
    ),
}


@pytest.fixture(scope="module", params=FILESYSTEMS)
def filesystem(request):
    return request.param


@pytest.fixture(scope="module")
def abilities():
    return {kind: able(kind) for kind in FILESYSTEMS}


def cut(path: Path, program: str, filesystem: str, abilities: dict[str, bool]) -> Run | None:
    """Runs a program up to `os.mkdir("cut")`, where the power is cut; None where the refusal was seen instead."""
    fault = f"power-cut on {filesystem} before mkdir cut"
    if abilities[filesystem]:
        return run_job(path, HELPERS + program + "\nos.mkdir('cut')", fault)
    with pytest.raises(CapabilityError, match="power-cut keeping") as refused:
        run_job(path, HELPERS + program + "\nos.mkdir('cut')", fault)
    assert f"mkfs.{filesystem}" in str(refused.value)
    return None


@pytest.mark.parametrize("name", TABLE)
def test_what_a_file_system_keeps(tmp_path, name, filesystem, abilities):
    program, on_ext4, otherwise_on_xfs = TABLE[name]
    run = cut(tmp_path, program, filesystem, abilities)
    if run is None:
        return
    expected = on_ext4 if filesystem == "ext4" else on_ext4 | otherwise_on_xfs
    attempt = run.attempts[0]
    assert {path: kept(run, path) for path in attempt.files("end")} == expected
    (found,) = attempt.of("power")
    assert found["survivors"] is not None, found
    assert attempt.of("escaped") == []
    assert leftovers(tmp_path) == []


def leftovers(path: Path) -> list[str]:
    """Images, loop devices and mounts that have to do with a directory."""
    backing = [file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file")]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    images = [str(image) for image in path.rglob("*.img")]
    return images + [line for line in [*backing, *mounts] if str(path) in line]


def test_without_a_cut_all_files_come_back(tmp_path, filesystem, abilities):
    program = "put('ckpt.pt', NEW); os.mkdir('d'); os.symlink('ckpt.pt', 'd/link'); os.chmod('ckpt.pt', 0o640)\nos._exit(0)"
    run = cut(tmp_path, program, filesystem, abilities)
    if run is None:
        return
    assert kept(run, "ckpt.pt") == NEW
    assert (run.directory.checkpoints / "d" / "link").readlink() == Path("ckpt.pt")
    assert (run.directory.checkpoints / "ckpt.pt").stat().st_mode & 0o777 == 0o640
    assert run.attempts[0].of("escaped") == []
    assert run.attempts[0].of("fired") == []
    assert leftovers(tmp_path) == []


SUPERVISOR = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from jobs import run_job
print("started", flush=True)
program = "open('here', 'w').close(); import signal; signal.pause()"
run_job(Path(sys.argv[2]), program, f"power-cut on {sys.argv[3]} before mkdir cut")
"""


@pytest.mark.parametrize("victim", ["supervisor", "keeper"])
def test_nothing_is_left_when_the_harness_is_killed(tmp_path, victim, filesystem, abilities):
    if not abilities[filesystem]:
        assert cut(tmp_path, "", filesystem, abilities) is None
        return
    here = Path(__file__).parent
    command = [sys.executable, "-c", SUPERVISOR, str(here), str(tmp_path), filesystem]
    with subprocess.Popen(command, cwd=here.parents[1], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as supervisor:
        try:
            rank = wait_for(lambda: started_rank(tmp_path))
            wait_for(lambda: Path(f"/proc/{rank}/root{tmp_path}/run/checkpoints/here").exists())
            assert any(str(tmp_path) in line for line in Path(f"/proc/{rank}/mounts").read_text().splitlines())
            rank_ended = os.pidfd_open(rank)
            keeper = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(supervisor.pid if victim == "supervisor" else keeper, signal.SIGKILL)
            assert select.select([rank_ended], [], [], 30)[0], "the rank lives on"
            os.close(rank_ended)
        finally:
            supervisor.kill()
    wait_for(lambda: not leftovers(tmp_path))


def started_rank(path: Path) -> int:
    log = path / "run" / "attempt-000" / "attempt.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    pids = [line.partition('"pid": ')[2].rstrip("}") for line in lines if '"started"' in line]
    return int(pids[0]) if pids else 0


def wait_for(condition):
    """The first true value of a condition that comes true within 30 s."""
    deadline, pause = time.monotonic() + 30, threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came true"
        pause.wait(0.01)
    return value


@pytest.mark.parametrize("lacking", ["root", "mkfs", "loop devices"])
def test_the_refusal_says_what_is_missing(tmp_path, lacking, monkeypatch):
    """In a child, since a disk gives its process a mount namespace of its own."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        text = "no refusal"
        try:
            tmp_path.chmod(0o777)
            if lacking == "root":
                drop_root()
            elif lacking == "mkfs":
                power._KINDS["xfs"] = power._Kind(1, ("mkfs.of-no-kind",), "")
            else:
                power.LoopDevice.__init__.__globals__["_CONTROL"] = "/dev/no-loop-control"
            power.RealDisk(tmp_path, "xfs", tmp_path)
        except OSError as error:
            text = str(power.refusal("xfs", str(error)))
        finally:
            theirs.send(text.encode())
            os._exit(0)
    os.waitpid(pid, 0)
    text = ours.recv(4096).decode()
    ours.close()
    theirs.close()
    assert "needs root, loop devices (/dev/loop-control) and mkfs.xfs (package xfsprogs); `power-cut keeping ...`" in text
    if os.getuid() == 0 and able("xfs"):
        assert {"root": "unshare", "mkfs": "mkfs.of-no-kind is not installed", "loop devices": "a loop device: No such"}[
            lacking
        ] in text
    assert leftovers(tmp_path) == []


def test_a_case_is_refused_where_there_is_no_loop_device(tmp_path, filesystem):
    """Through the keeper and the supervisor, in a child that sees another device in its place."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "no refusal"
        try:
            if os.getuid() == 0:
                private_mounts(user_namespace=False)
                kernel.mount("/dev/null", "/dev/loop-control", "", 4096)  # MS_BIND
            run_job(tmp_path, "pass", f"power-cut on {filesystem} before mkdir cut")
        except (OSError, CapabilityError) as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    assert text.startswith(f"CapabilityError: this machine cannot cut the power of a real {filesystem} disk"), text
    assert "`power-cut keeping ...`, the model, needs none of them" in text
    assert leftovers(tmp_path) == []


def drop_root() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
