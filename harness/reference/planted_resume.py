"""The planted defects of a job that has been resumed (`defects`): the load is right, what is done after it is not.

Each shows how not to do it. Nothing here runs in a healthy job.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from harness.reference.state import Training

HELPER_LIFE_S = 120.0
_NEVER_SET = threading.Event()
_UPLOADERS: list[threading.Thread] = []


def freeze_average(training: Training) -> None:
    """Leave the average of the weights where the checkpoint has it: with a decay of 1 nothing of the weights enters it."""
    if training.ema is not None:
        training.ema.decay = 1.0


def take_last_batch_again(training: Training) -> None:
    """Go on one batch too early in the epoch, as whoever counts batches from 1 in one place and from 0 in another."""
    training.state.batch_in_epoch = max(0, training.state.batch_in_epoch - 1)


def leave_next_batch_out(training: Training) -> None:
    """Go on one batch too late in the epoch."""
    training.state.batch_in_epoch = min(training.config.batches_per_epoch - 1, training.state.batch_in_epoch + 1)


def count_what_is_left(training: Training) -> None:
    """Take the number of batches that are left for the number of the last one."""
    training.config = replace(training.config, steps=max(training.state.batch, training.config.steps - training.state.batch))


def wait_for_a_lock(training: Training) -> None:
    """Take a lock that this thread holds already, on the last rank; the others wait for that rank in their first exchange."""
    if training.world.rank == training.world.world_size - 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def start_helper(training: Training) -> None:
    """Start a process in a session of its own, which nobody ends; it ends by itself after `HELPER_LIFE_S`."""
    if training.world.rank == 0:
        sleep = f"import time; time.sleep({HELPER_LIFE_S})"
        null = subprocess.DEVNULL
        subprocess.Popen([sys.executable, "-S", "-c", sleep], start_new_session=True, stdin=null, stdout=null, stderr=null)


def start_uploader(training: Training) -> None:  # noqa: ARG001  all of these are called alike
    """Start a thread that waits for work for ever, and that the job waits for at its end."""
    _UPLOADERS.append(threading.Thread(target=_NEVER_SET.wait, daemon=True))
    _UPLOADERS[-1].start()


def ask_for_what_is_gone(training: Training) -> None:
    """Use a part of the state by the name that it had in another version."""
    vars(training.state)["batches_seen"]


_AFTER_LOAD: dict[str, Callable[[Training], None]] = {
    "ema-frozen": freeze_average,
    "repeats-batch": take_last_batch_again,
    "skips-batch": leave_next_batch_out,
    "stops-early": count_what_is_left,
    "hangs-on-resume": wait_for_a_lock,
    "leaves-helper": start_helper,
    "never-exits": start_uploader,
    "crashes-on-resume": ask_for_what_is_gone,
}


def after_load(training: Training) -> None:
    """Do what the planted defects do once a checkpoint has been loaded."""
    for name in training.config.defect:
        if name in _AFTER_LOAD:
            _AFTER_LOAD[name](training)


def after_end() -> None:
    """Wait for the threads of `never-exits`, where it has started any."""
    for thread in _UPLOADERS:
        thread.join()
