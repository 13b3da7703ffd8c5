"""Real ranks for tests: processes that run a function of a test module together and hand its results back.

Run as a program, this file imports torch once and forks the ranks of one call after the other: a fork costs milliseconds,
the import seconds. The ranks meet through a file and talk through gloo.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
HUNG = 1000


class Ranks:
    """Calls functions on real ranks.

    Args:
        process: This file, running as a program.
        folder: For arguments and results.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._calls = 0

    def run(self, function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
        """Call `function(world, *arguments)` on every rank; returns what each returned, in rank order.

        The function stands at the top of a test module; arguments and results can be pickled.
        """
        self._calls += 1
        folder = self._folder / f"call-{self._calls}"
        folder.mkdir(parents=True)
        (folder / "call").write_bytes(pickle.dumps((function.__module__, function.__name__, arguments)))
        said = ask(self._process, f"{world_size} {folder}")
        assert said == "ended", said
        errors = [path.read_text() for path in sorted(folder.glob("error-*"))]
        assert not errors, "\n".join(errors)
        return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(world_size)]


@contextlib.contextmanager
def running_program(file: str):
    """Starts a file of this directory as a program that answers each line with a line, and ends it."""
    process = subprocess.Popen(
        [sys.executable, file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=DEADLINE_S / 4)
        process.kill()
        process.wait(timeout=DEADLINE_S / 4)
        process.stdout.close()


def ask(process: subprocess.Popen[str], question: str) -> str:
    """Writes a line to a program and returns the line that it answers with."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
    assert ready, "the ranks did not end before their deadline"
    return process.stdout.readline().strip()


@contextlib.contextmanager
def running_ranks(folder: Path):
    """Starts this file as a program, and ends it."""
    with running_program(__file__) as process:
        yield Ranks(process, folder)


# ---- the program ----------------------------------------------------------------------------------------------------


def serve() -> None:
    import gc
    import importlib

    import harness.reference.dcp_async
    import harness.reference.loop
    import harness.reference.safetensors_format
    import harness.reference.sharded  # noqa: F401

    for line in sys.stdin:
        world_size, _, folder = line.strip().partition(" ")
        module, name, arguments = pickle.loads((Path(folder) / "call").read_bytes())
        function = getattr(importlib.import_module(module), name)
        gc.freeze()
        fork_ranks(int(world_size), Path(folder), function, arguments)
        print("ended", flush=True)


def fork_ranks(world_size: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    codes = run_ranks(world_size, lambda rank: be_rank(rank, world_size, folder, function, arguments))
    for rank, code in enumerate(codes):
        if code:
            with (folder / f"error-{rank}").open("a") as file:
                file.write(f"rank {rank} {'hung' if code == HUNG else f'ended with {code}'}\n")


def run_ranks(world_size: int, become: Callable[[int], None]) -> list[int]:
    """Forks ranks that die with this process, each of which becomes what `become(rank)` makes of it.

    Returns:
        Their exit codes in rank order, negative for a signal; `HUNG` for one that had to be killed.
    """
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                become(rank)
            finally:
                os._exit(99)  # it should have left by itself
        pids.append(pid)
    deadline = time.monotonic() + DEADLINE_S / 2
    codes = []
    for pid in pids:
        descriptor = os.pidfd_open(pid)
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        os.close(descriptor)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        codes.append(os.waitstatus_to_exitcode(status) if ready else HUNG)
    return codes


def be_rank(rank: int, world_size: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    code = 1
    try:
        import torch

        from harness.reference.comm import start_process_group, stop_process_group
        from harness.reference.world import World

        os.dup2(2, 1)  # what a rank prints is no answer of the program
        torch.set_num_threads(1)
        world = World(rank, rank, world_size)
        start_process_group(world, f"file://{folder}/store", DEADLINE_S / 4, "cpu")
        result = function(world, *arguments)
        (folder / f"result-{rank}").write_bytes(pickle.dumps(result))
        stop_process_group()
        code = 0
    except BaseException:  # noqa: BLE001  the CheckpointException of torch derives from it
        (folder / f"error-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}")
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
