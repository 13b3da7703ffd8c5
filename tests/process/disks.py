"""Whether this machine has real disks whose power can be cut."""

from __future__ import annotations

from harness import doctor


def able(filesystem: str) -> bool:
    """Whether this machine can cut the power of such a disk, as `harness doctor` finds out."""
    check = next(check for check in doctor.CHECKS if f"real {filesystem} disk" in check.name)
    try:
        return bool(check.try_it())
    except (OSError, RuntimeError):
        return False
