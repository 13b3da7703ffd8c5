"""Several cases at a time: results in the order of the items, and workers that never outlive their parent."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from harness.workers import run_all

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


def test_workers_end_with_their_parent_even_when_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", WAITING], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [os.pidfd_open(int(parent.stdout.readline())) for _ in range(2)]
        parent.kill()
        parent.wait(timeout=30)
        for worker in workers:
            assert select.select([worker], [], [], 30)[0], "a worker has outlived its parent"
            os.close(worker)
