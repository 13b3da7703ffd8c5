"""Several cases at a time: results in the order of the items, and workers that never outlive their parent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.workers import OutOfTime, ended_at, run_all

ROOT = Path(__file__).resolve().parents[2]
WAITING = """
import os, signal, sys
from harness.workers import run_all
def wait(number):
    os.write(1, f"{os.getpid()}\\n".encode())
    signal.pause()
list(run_all(wait, [1, 2], 2))
"""


def square(number):
    return number * number, os.getpid()


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs):
    found = list(run_all(square, range(9), jobs))
    assert [(item, result[0]) for item, result in found] == [(number, number * number) for number in range(9)]
    assert (os.getpid() in {result[1] for _, result in found}) == (jobs == 1)


@dataclass(frozen=True)
class Waiting:
    """A task that one item never ends by itself; it puts something away then."""

    folder: Path
    item: int

    def __call__(self, number):
        try:
            while number == self.item:
                signal.pause()
        finally:
            (self.folder / str(number)).touch()
        return number


def test_results_come_as_they_are_there_where_that_is_asked_for(tmp_path):
    found = []
    with pytest.raises(OutOfTime), ended_at(time.monotonic() + 2):
        found.extend(run_all(Waiting(tmp_path, 1), [1, 2], 2, ordered=False))
    assert found == [(2, 2)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_ends_when_the_time_is_up(jobs, tmp_path):
    found = []
    with pytest.raises(OutOfTime), ended_at(time.monotonic() + 2):
        found.extend(run_all(Waiting(tmp_path, 1), [0, 1], jobs))
    assert found == [(0, 0)]
    assert (tmp_path / "1").exists()


def test_the_time_of_what_is_around_counts_again_afterwards():
    def both():
        with contextlib.suppress(OutOfTime), ended_at(time.monotonic() + 0.05):
            signal.pause()
        signal.pause()

    with pytest.raises(OutOfTime), ended_at(time.monotonic() + 2):
        both()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_workers_end_with_their_parent_even_when_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", WAITING], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [os.pidfd_open(int(parent.stdout.readline())) for _ in range(2)]
        parent.kill()
        parent.wait(timeout=30)
        for worker in workers:
            assert select.select([worker], [], [], 30)[0], "a worker has outlived its parent"
            os.close(worker)


INTERRUPTED = """
import os, signal, sys, time
from harness.workers import Pool, run_all

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def blocked(_=None):
    return sorted(int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, []))

os.register_at_fork(after_in_parent=interrupt)
pool = Pool(print)
try:
    pool.start(1, blocked) if sys.argv[1] == "pool" else list(run_all(blocked, [1, 2], 2))
except KeyboardInterrupt:
    print("interrupted")
    print([answer for _, answer in pool.wait(30.0)])
"""


@pytest.mark.parametrize(("how", "said"), [("pool", "interrupted\n[[]]\n"), ("run_all", "interrupted\n[]\n")])
def test_an_interruption_in_the_middle_of_a_fork_is_not_lost(how, said):
    words = [sys.executable, "-c", INTERRUPTED, how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)
