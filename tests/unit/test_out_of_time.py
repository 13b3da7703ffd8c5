"""The moment at which everything ends may come where Python lets nothing out."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from harness.workers import OutOfTime, ended_at


class Slow:
    """What is being removed when the time is up."""

    def __del__(self):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass


def _remove_and_wait(until):
    one = Slow()
    del one
    pause = threading.Event()
    while time.monotonic() < until:
        pause.wait(0.01)


def test_an_end_that_comes_while_an_object_is_removed_is_not_lost_and_not_printed(capfd):
    hook, begun = sys.unraisablehook, time.monotonic()
    with pytest.raises(OutOfTime), ended_at(begun + 0.1):
        _remove_and_wait(begun + 20)
    assert time.monotonic() < begun + 15
    assert "Traceback" not in capfd.readouterr().err
    assert sys.unraisablehook is hook
