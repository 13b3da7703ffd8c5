"""Which checkpoints of a directory are whole: `python -m harness.reference.scan DIRECTORY`. Changes nothing.

Reads every byte of every committed checkpoint, whatever its format, newest first. Exit codes: 0 all are whole, 1 some are
not, 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError, one_line
from harness.reference.formats import CheckpointFormat, CheckpointHeader, batch_of, load_format
from harness.reference.manifest import is_committed, read_manifest


@dataclass(frozen=True)
class Scanned:
    """One checkpoint: what it says about itself, or why it cannot be loaded."""

    path: Path
    header: CheckpointHeader | None
    problem: str


def scan_checkpoints(parent: Path) -> list[Scanned]:
    """Look at every committed checkpoint, newest first.

    Raises:
        OSError: The directory cannot be read.
    """
    found = {path: name for name in ("single", "sharded") for path in load_format(TrainConfig(format=name)).find(parent)}
    return [_scan(path, _format_of(path, name)) for path, name in sorted(found.items(), reverse=True)]


def _format_of(path: Path, name: str) -> CheckpointFormat:
    """The format of a checkpoint, by the files that its manifest lists; directories share everything else."""
    if name == "sharded":
        try:
            names = {shard.name for shard in read_manifest(path).shards}
        except (OSError, CheckpointError):
            names = set()  # the check itself will say what is wrong
        name = "dcp" if ".metadata" in names else "safetensors" if "model.safetensors" in names else "sharded"
    return load_format(TrainConfig(format=name))


def _scan(path: Path, checkpoint_format: CheckpointFormat) -> Scanned:
    try:
        return Scanned(path, checkpoint_format.verify(path), "")
    except (OSError, CheckpointError) as error:
        return Scanned(path, None, one_line(error))


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if list(argv) in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    parent = Path(argv[0]) if len(argv) == 1 else None
    if parent is None or not parent.is_dir():
        found = "" if parent is None else f"; {parent} is no directory"
        print(f"usage: python -m harness.reference.scan DIRECTORY{found}", file=sys.stderr)
        return 2
    results = scan_checkpoints(parent)
    for one in results:
        if one.header is None:
            print(f"CORRUPT  {one.path.name}: {one.problem}")
        else:
            print(f"ok       {one.path.name}: batch {one.header.batch}, step {one.header.step}, {one.header.world_size} ranks")
    unfinished = [p.name for p in parent.iterdir() if p.is_dir() and batch_of(p) is not None and not is_committed(p)]
    for name in sorted(unfinished):
        print(f"never committed: {name}")
    if not results:
        print(f"no checkpoint of the reference trainer (step-NNNNNNNN.pt, step-NNNNNNNN/manifest.json) in {parent}")
    return int(any(one.header is None for one in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
