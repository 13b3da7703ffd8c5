"""The probe: watches a training process from inside, without its code being changed, and writes docs/event-log.md.

`watch` waits for torch to be imported; from then on every optimizer step, save, load and the end are written down. It reads
the environment: `HARNESS_EVENT_LOG` (folder of the attempt), `HARNESS_PROBE` (the checkpoint directory), and
`HARNESS_PROBE_GOLDEN` (the uninterrupted run's logs; without it every step's digests are written, for later runs).

Does not see: updates made without a torch optimizer, gradients of `torch.autograd.grad`, other frameworks.
"""

from __future__ import annotations

from .imports import when_imported

__all__ = ["watch"]


def watch() -> None:
    """Starts the probe as soon as torch is imported."""
    when_imported("torch", _begin)


def _begin() -> None:
    from .observer import begin

    begin()
