"""The probe: watches a training process from inside, without its code being changed, and writes docs/event-log.md.

`watch` waits for torch to be imported; from then on every optimizer step, save, load and the end are written down. It reads
the environment: `HARNESS_EVENT_LOG` (folder of the attempt), `HARNESS_PROBE` (the checkpoint directory), and
`HARNESS_PROBE_GOLDEN` (the uninterrupted run's logs; without it every step's digests are written, for later runs).

Does not see: updates made without a torch optimizer, gradients of `torch.autograd.grad`, other frameworks; saves by a forked
copy of the trainer; an exit code that is given by `raise SystemExit(code)` and not by `sys.exit` (its end tells it).
"""

from __future__ import annotations

import contextlib
import os

from .imports import when_imported

__all__ = ["watch"]

# Set by whoever runs a script as an interpreter would: its exit code, once it is known.
exit_code: object = None


def watch() -> None:
    """Starts the probe as soon as torch is imported."""
    when_imported("torch", _begin)


def _begin() -> None:
    try:
        from .observer import begin

        begin()
    except Exception as error:  # noqa: BLE001  whatever it is, the trainer goes on
        from .log import Log

        with contextlib.suppress(Exception):
            Log(os.environ["HARNESS_EVENT_LOG"]).write("probe-failed", where="begin", error=f"{type(error).__name__}: {error}")
