"""Four ranks save four shards and a manifest; what they load is what they saved; and what is damaged is refused.

A manifest is data from a disk, so a loader believes none of it: who saved, which file names, how long, which checksum. Each
refusal names the file, what was expected and what was found, and it happens before anything of a job is changed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.reference.comm import start_process_group, stop_process_group
from harness.reference.config import TrainConfig
from harness.reference.demo.command import DemoError, build_parser, conclude, lacks_device, workplace
from harness.reference.demo.processes import fork_ranks
from harness.reference.errors import CheckpointError
from harness.reference.loop import build_training
from harness.reference.manifest import MANIFEST_NAME
from harness.reference.sharded import build_shard, load_sharded, save_sharded, shard_name
from harness.reference.world import World

RANKS, BATCH = 4, 12
CONFIG = TrainConfig(format="sharded", width=16)


def main(argv: Sequence[str]) -> int:
    """Run the demo; return its exit code."""
    options = build_parser("sharded").parse_args(argv)
    torch.set_num_threads(1)
    with workplace(options.out) as place:
        checkpoint = place / f"step-{BATCH:08d}"
        try:
            with fork_ranks(lambda world: save_and_load(world, place, checkpoint, options.device), RANKS, place / "log") as ranks:
                ranks.succeed()
        except DemoError as error:
            return conclude("sharded checkpoint", [str(error)])
        print((checkpoint / MANIFEST_NAME).read_text() + "\n")
        print(f"reload: on each of {RANKS} ranks every byte is the one that was saved\n")
        problems = [problem for refusal in REFUSALS if (problem := show_refusal(checkpoint, *refusal)) is not None]
        loaded = len(list(load_sharded(checkpoint, RANKS)))
        print(f"after all of this the checkpoint loads as before: {loaded} shards")
    return conclude("sharded checkpoint", problems, f"{RANKS} shards, {len(REFUSALS) - len(problems)} refusals")


def save_and_load(world: World, place: Path, checkpoint: Path, device: str) -> int:
    """Be one rank: save its part of a job's state together with the others, load it, and compare.

    Returns:
        The exit code: 0 if every byte is the same.
    """
    if lacks_device(device, world):
        return 2
    start_process_group(world, f"file://{place}/meeting", timeout_s=60.0, device=device)
    training = build_training(replace(CONFIG, device=device), world)
    training.state.batch = training.state.step = BATCH  # as if it had trained that long
    shard = build_shard(training)
    save_sharded(shard, checkpoint, training.state.step)
    loaded = list(load_sharded(checkpoint, expected_world_size=world.world_size))[world.rank]
    difference = first_difference(shard, loaded)
    if difference is not None:
        print(f"rank {world.rank}: not what was saved: {difference}")
    stop_process_group()
    return 0 if difference is None else 1


def first_difference(saved: Any, loaded: Any, where: str = "shard") -> str | None:
    """Return the place of the first value that is not the same in all its bytes, or None."""
    if type(saved) is not type(loaded):
        return f"{where}: {type(saved).__name__} became {type(loaded).__name__}"
    if isinstance(saved, dict):
        pairs = [(saved[key], loaded[key], f"{where}.{key}") for key in saved] if saved.keys() == loaded.keys() else []
        return next((found for pair in pairs if (found := first_difference(*pair))), None if pairs or saved == loaded else where)
    if isinstance(saved, (list, tuple)):
        pairs = [(one, loaded[i], f"{where}[{i}]") for i, one in enumerate(saved)] if len(saved) == len(loaded) else []
        return next((found for pair in pairs if (found := first_difference(*pair))), None if pairs or saved == loaded else where)
    if isinstance(saved, Tensor):
        # Bytes, not numbers: of those a NaN would differ from itself, and 0.0 would equal -0.0.
        same = (saved.dtype, saved.shape) == (loaded.dtype, loaded.shape) and _bytes(saved) == _bytes(loaded)
        return None if same else where
    return None if saved == loaded else where


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


# --- the refusals: name, what the message must begin with, how many ranks want to load, what is done to the checkpoint


def flip_byte(checkpoint: Path) -> None:
    """Alter one bit in the middle of rank 2's shard."""
    path = checkpoint / shard_name(2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove_shard(checkpoint: Path) -> None:
    """Lose rank 1's shard."""
    (checkpoint / shard_name(1)).unlink()


def edit_manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Return what edits the manifest as somebody with an editor would: the rest of it stays as it is."""

    def edit(checkpoint: Path) -> None:
        path = checkpoint / MANIFEST_NAME
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest, indent=1))

    return edit


def _leave(checkpoint: Path) -> None:
    """The checkpoint is good; who loads it is wrong."""


REFUSALS: tuple[tuple[str, str, int, Callable[[Path], None]], ...] = (
    ("wrong world size", "world_size mismatch", 3, _leave),
    ("altered byte", "sha256 mismatch on rank 2", RANKS, flip_byte),
    ("missing shard", "shard file missing", RANKS, remove_shard),
    ("unknown schema", "unknown schema", RANKS, edit_manifest(lambda m: m.update(schema="ckpt.v999"))),
    ("unsafe shard path", "unsafe shard path", RANKS, edit_manifest(lambda m: m["shards"][3].update(name="../rank3.bin"))),
    ("duplicate rank", "duplicate rank", RANKS, edit_manifest(lambda m: m["shards"][1].update(name=shard_name(0)))),
)


def show_refusal(checkpoint: Path, name: str, words: str, ranks: int, damage: Callable[[Path], None]) -> str | None:
    """Damage the checkpoint, try to load it, and put it back; return what does not hold, in words, or None."""
    with restored(checkpoint):
        damage(checkpoint)
        before = contents(checkpoint)
        try:
            shards = list(load_sharded(checkpoint, expected_world_size=ranks))
        except CheckpointError as error:
            print(f"{name}: refused\n  {error}\n")
            if not str(error).startswith(words):
                return f"{name}: the message was to begin with {words!r}"
            return None if contents(checkpoint) == before else f"{name}: the refusal has changed the directory"
    print(f"{name}: ACCEPTED\n")
    return f"{name}: {len(shards)} shards were loaded"


@contextlib.contextmanager
def restored(checkpoint: Path) -> Iterator[None]:
    """Put the directory back as it is now, whatever is done to it."""
    before = contents(checkpoint)
    try:
        yield
    finally:
        for path in checkpoint.iterdir():
            if path.name not in before:
                path.unlink()
        for name, data in before.items():
            (checkpoint / name).write_bytes(data)


def contents(checkpoint: Path) -> dict[str, bytes]:
    """Return the bytes of every file by its name."""
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}
