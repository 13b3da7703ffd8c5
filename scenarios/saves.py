"""The short job that most scenarios interrupt, and the words for where it writes.

It takes 8 batches in two epochs of four, saves after every second, and keeps two checkpoints. Faults strike the save after
batch 6: it lies in the middle of the second epoch, older checkpoints exist, and it is followed by a rotation. One scenario
takes a longer look (test_rank_count.py); tests/quality runs every configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import job
from harness.case import Workbench
from harness.explore import record
from harness.scenario import Format, Scenario
from harness.sweep import Sweep, sweep

SAVE = "step-00000006"
# The formats that are attacked in every way; test_parallelism.py has the others.
FORMATS: tuple[Format, ...] = ("single", "sharded", "dcp")

__all__ = ["COMMIT", "FORMATS", "SAVE", "Format", "any_file", "commit_rank", "data_file", "short_job", "swept"]


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


def short_job(format: Format, **settings: Any) -> Scenario:
    """The job of 8 batches; `settings` as for `harness.job`."""
    return job(format, **{"steps": 8, "batches_per_epoch": 4, "save_every": 2, "keep_last": 2, **settings})


def swept(workbench: Workbench, folder: Path, format: Format, *, ranks: int = 2, defects: str = "", **settings: Any) -> Sweep:
    """Records a job of four saves and sweeps over the newest of the two checkpoints that it keeps; `settings` as for `sweep`."""
    short = {"steps": 4, "save_every": 1, "keep_last": 2, "batches_per_epoch": 2, "width": 16, "name": f"swept-{format}"}
    scenario = job(format, ranks=ranks, defects=[defects] if defects else [], **short)
    return sweep(record(scenario, workbench, folder, once=True), workbench, folder / "cases", **settings)
