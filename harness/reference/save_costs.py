"""What a save costs, measured: `python -m harness.reference.save_costs DIRECTORY [WIDTH]`, one process, prints JSON.

Compares `sharded` with writing the same bytes by plain `write` and `fsync` into one file, and the time for which `dcp-async`
blocks training with that of `dcp`. Disks drift, and other programs take turns at them, so what is compared is done side by side,
`REPEATS` times after one time that does not count, each time in the other order, on a disk that has nothing left to write; and
ratios are taken within a round.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.reference.config import TrainConfig
from harness.reference.formats import CheckpointFormat, load_format
from harness.reference.loop import build_training
from harness.reference.sharded import shard_name
from harness.reference.tensors import live_tensors
from harness.reference.world import World

DEFAULT_WIDTH = 896  # 231 MB of weights and moments
REPEATS = 5


def measure(directory: Path, width: int) -> dict[str, Any]:
    """Return the size of the state in bytes, and by name the seconds of every round, in the order of the rounds.

    Args:
        directory: Where to write; what is written is removed.
        width: Of the model.
    """
    torch.set_num_threads(1)
    training = build_training(TrainConfig(out=directory, width=width), World())
    formats = {name: load_format(TrainConfig(format=name)) for name in ("sharded", "dcp", "dcp-async")}
    state_bytes = sum(t.values.numel() * t.values.element_size() for t in live_tensors(training).values())
    formats["sharded"].save(training, directory / "first")
    data = (directory / "first" / shard_name(0)).read_bytes()
    actions: dict[str, Callable[[], object]] = {
        "sharded_s": lambda: formats["sharded"].save(training, directory / "sharded"),
        "plain_s": lambda: _write(directory / "plain", data),
        "dcp_s": lambda: formats["dcp"].save(training, directory / "dcp"),
        "async_blocked_s": lambda: formats["dcp-async"].save(training, directory / "dcp-async"),
    }
    rounds = []
    for number in range(REPEATS + 1):
        names = sorted(actions, reverse=number % 2 == 1)
        rounds.append({name: _time(actions[name], formats["dcp-async"], directory) for name in names})
    return {"state_bytes": state_bytes, **{name: [one[name] for one in rounds[1:]] for name in actions}}


def _time(action: Callable[[], object], background: CheckpointFormat, directory: Path) -> float:
    """Seconds of an action; what it leaves behind is written to its end and removed before the next."""
    started = time.perf_counter()
    action()
    seconds = time.perf_counter() - started
    background.finish(wait=True)
    shutil.rmtree(directory)
    directory.mkdir()
    os.sync()
    return seconds


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
