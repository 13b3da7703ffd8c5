"""How a process ended, in the harness's words. Pure.

Kinds: `exited` (by itself, with a code), `own-kill` (a fault of the harness), `peer-died` (the harness ended it because
another rank had died, as a launcher does), `foreign-death` (killed by a signal that the harness did not send),
`crashed` (a signal that a process gives itself: a segmentation fault, an abort), `hang` (still running at the deadline),
`finished-but-did-not-exit` (all work was done, the process did not end), `stopped` (a fault had stopped it for good).
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

_OWN_CRASH = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}


@dataclass(frozen=True)
class Exit:
    """The end of one process: `code` if it exited, `signal_name` if a signal ended it, and the kind."""

    kind: str
    code: int | None
    signal_name: str | None


def classify(status: int, sent: dict[int, str]) -> Exit:
    """Classifies a wait status.

    Args:
        status: as `os.waitpid` gives it.
        sent: signal number → why the harness sent it to this process ("fault", "peer-died", "deadline", "finished",
            "stopped").
    """
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        # A process that ended by itself on a signal of ours (it may handle SIGTERM) has still ended by itself.
        return Exit("exited", code, None)
    number = signal.Signals(os.WTERMSIG(status))
    kinds = {
        "fault": "own-kill",
        "peer-died": "peer-died",
        "deadline": "hang",
        "finished": "finished-but-did-not-exit",
        "stopped": "stopped",
    }
    if number in sent:
        return Exit(kinds.get(sent[number], "own-kill"), None, number.name)
    return Exit("crashed" if number in _OWN_CRASH else "foreign-death", None, number.name)
