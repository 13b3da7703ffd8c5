"""What a save costs, measured: `python -m harness.reference.save_costs DIRECTORY [WIDTH]`, one process, prints JSON.

Compares `sharded` with writing the same bytes by plain `write` and `fsync`, and the time for which `dcp-async` blocks training
with that of `dcp`. Each is done `REPEATS` times in turn, after one time that does not count, and the median is taken: disks
drift, so what is compared must be measured side by side.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from harness.reference.config import TrainConfig
from harness.reference.formats import CheckpointFormat, load_format
from harness.reference.loop import build_training
from harness.reference.state import Training
from harness.reference.tensors import live_tensors
from harness.reference.world import World

DEFAULT_WIDTH = 896  # 231 MB of weights and moments
REPEATS = 5


def measure(directory: Path, width: int) -> dict[str, float]:
    """Return seconds by name, and the size of the state in bytes.

    Args:
        directory: Where to write; what is written is removed.
        width: Of the model.
    """
    torch.set_num_threads(1)
    training = build_training(TrainConfig(out=directory, width=width), World())
    formats = {name: load_format(TrainConfig(format=name)) for name in ("sharded", "dcp", "dcp-async")}
    state_bytes = sum(t.values.numel() * t.values.element_size() for t in live_tensors(training).values())
    rounds = [_round(training, formats, directory) for _ in range(REPEATS + 1)][1:]
    return {"state_bytes": state_bytes, **{name: statistics.median(one[name] for one in rounds) for name in rounds[0]}}


def _round(training: Training, formats: dict[str, CheckpointFormat], directory: Path) -> dict[str, float]:
    """Each thing once, in turn; leaves the directory empty."""
    times = {"sharded_s": _time(lambda: _save(formats["sharded"], training, directory / "sharded"))}
    data = (directory / "sharded" / "rank0.bin").read_bytes()
    times["plain_s"] = _time(lambda: _write(directory / "plain", data))
    times["dcp_s"] = _time(lambda: _save(formats["dcp"], training, directory / "dcp"))
    times["async_blocked_s"] = _time(lambda: _save(formats["dcp-async"], training, directory / "dcp-async"))
    formats["dcp-async"].finish(wait=True)
    shutil.rmtree(directory)
    directory.mkdir()
    return times


def _time(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _save(checkpoint_format: CheckpointFormat, training: Training, path: Path) -> None:
    checkpoint_format.save(training, path)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def main() -> int:
    """Run the command."""
    if len(sys.argv) not in (2, 3):
        print("usage: python -m harness.reference.save_costs DIRECTORY [WIDTH]", file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(directory, int(sys.argv[2]) if len(sys.argv) == 3 else DEFAULT_WIDTH)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
