"""How much memory the process holds before and after a load, and at most.

Responsible for: the figures. Freed memory that the allocator keeps is given back first, so that it is not taken for held.
Not responsible for: what is too much (`harness.oracle.memory`).
"""

from __future__ import annotations

import contextlib
import ctypes

# Batches after the load: by then the optimizer's state and the gradients are there, in an uninterrupted run too.
_LATER = 2


class Memory:
    """Of this process, from the moment at which it is made."""

    def __init__(self) -> None:
        self._before = _figures().get("VmRSS", 0)
        self._at = -1
        self._peak = 0

    def begun(self, batch: int) -> None:
        """Right after the load, before the first batch of this process."""
        self._at, self._peak = batch + _LATER, _figures().get("VmHWM", 0)

    def after(self, batch: int) -> dict[str, int]:
        """What there is to say after this batch: `before_kib`, `peak_kib` (until the load was done), `held_kib`; once."""
        if batch != self._at or not self._before:
            return {}
        with contextlib.suppress(OSError, AttributeError):  # musl has no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)
        return {"before_kib": self._before, "peak_kib": self._peak, "held_kib": _figures().get("VmRSS", 0)}


def _figures() -> dict[str, int]:
    """`VmRSS` and `VmHWM` in KiB; nothing where the kernel does not say."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        for line in file:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(value.split()[0])
    return found
