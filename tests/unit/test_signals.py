from __future__ import annotations

import gc
import signal

import pytest

from harness.commits import git
from harness.signals import remembered


def test_a_git_that_was_ended_by_ctrl_c_is_no_failure_of_git(tmp_path, monkeypatch):
    """The same Ctrl-C was meant for whoever waits for it, and may not have come there yet."""
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nkill -INT $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(KeyboardInterrupt):
        git(tmp_path, "status")


@pytest.fixture
def answered():
    """Ctrl-C interrupts this process, whoever has started it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_was_lost_in_a_callback_interrupts_later(answered):
    def callback(phase, _info):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)

    with remembered() as again:
        again()
        gc.callbacks.append(callback)
        try:
            gc.collect()  # what is raised there is printed, and lost
        finally:
            gc.callbacks.remove(callback)
        with pytest.raises(KeyboardInterrupt):
            again()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_interrupts_as_ever_and_who_ignores_it_is_left_alone(answered):
    with pytest.raises(KeyboardInterrupt), remembered():
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with remembered() as again:
        signal.raise_signal(signal.SIGINT)
        again()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
