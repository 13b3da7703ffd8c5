"""Where the reference trainer writes: the words that the scenarios share.

A job of 24 batches saves after every fourth, and keeps three checkpoints. Faults strike the save after batch 16: it lies in
the middle of the second epoch, older checkpoints exist, and it is followed by a rotation.
"""

from __future__ import annotations

from harness.scenario import FORMATS, Format

SAVE = "step-00000016"

__all__ = ["COMMIT", "FORMATS", "SAVE", "Format", "any_file", "commit_rank", "data_file"]


def data_file(format: Format, rank: int = 0, save: str = SAVE) -> str:
    """The file that carries the tensors of a rank while that save is being written."""
    if format == "single":
        return f"{save}.pt.*.tmp"
    return f"{save}/rank{rank}.bin.tmp" if format == "sharded" else f"{save}/__{rank}_*"


def any_file(format: Format) -> str:
    """Every file of that save, while it is being written."""
    return f"{SAVE}.pt.*.tmp" if format == "single" else f"{SAVE}/*"


COMMIT: dict[Format, str] = {"single": f"{SAVE}.pt", "sharded": f"{SAVE}/manifest.json", "dcp": f"{SAVE}/manifest.json"}


def commit_rank(format: Format, ranks: int) -> int:
    """The rank whose shard a scenario strikes: the last one, or rank 0 where only that one writes."""
    return 0 if format == "single" else ranks - 1
