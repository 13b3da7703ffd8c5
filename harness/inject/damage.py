"""Damage to files at rest, between two attempts.

Fault model: a file is shortened, one bit of it is flipped, a block of it is zeros, it is gone, two files have changed places,
a file is that of the checkpoint before, or it says something else than it did (`harness.inject.tamper`). Works only below the
checkpoint directory that the harness has made for the case; a symbolic link that leads out of it is refused, never followed.
Not covered: damage while a process has the file open; blocks that are not aligned, or of another size.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoint_files import Entry, committed_entries
from harness.errors import UsageError
from harness.fault import DamageFault, Position, matches_path
from harness.inject import tamper

BLOCK_BYTES = 4096  # of the pages and blocks in which files reach a disk


@dataclass(frozen=True)
class Damaged:
    """One file that was hit: `path` is relative to the checkpoint directory; `unchanged` if its bytes are still the same."""

    path: str
    entry: Entry
    size_before: int
    size_after: int
    unchanged: bool


def apply(fault: DamageFault, root: Path) -> list[Damaged]:
    """Does the damage.

    Args:
        fault: what to do.
        root: the checkpoint directory of the case.

    Returns:
        The files that were hit; empty if no checkpoint or no file of it matches.

    Raises:
        UsageError: a file that matches lies outside `root` (a symbolic link leads out).
    """
    entries = _chosen(fault, committed_entries(root))
    targets = [(entry, path) for entry in entries for path in _files(fault, root, entry)]
    touched = [path for _, path in targets] + [path for _, path in _sources(fault, root, targets).values()]
    outside = [str(path) for path in touched if not path.resolve().is_relative_to(root.resolve())]
    if outside:
        raise UsageError(
            [f"fault '{fault}': {path} leads out of the checkpoint directory {root}; nothing was damaged" for path in outside]
        )
    if fault.effect in ("swap", "replace"):
        return _exchanged(_sources(fault, root, targets), root)
    hit = [damaged for entry, path in targets for damaged in _hit(fault, root, entry, path)]
    return list({damaged.path: damaged for damaged in hit}.values())  # a manifest is corrected once for each of its shards


def _chosen(fault: DamageFault, entries: list[Entry]) -> list[Entry]:
    if fault.checkpoint == "every":
        return entries
    return entries[-1:] if fault.checkpoint == "newest" else entries[-2:-1]


def _files(fault: DamageFault, root: Path, entry: Entry) -> list[Path]:
    path = root / entry.name
    if path.is_file():
        # A checkpoint that is one file has no names below it; a pattern then speaks of the file itself.
        return [path] if not fault.pattern or matches_path(fault.pattern, entry.name) else []
    files = sorted(Path(directory, name) for directory, _, names in os.walk(path) for name in names)
    if fault.effect != "swap":
        return [file for file in files if not fault.pattern or matches_path(fault.pattern, str(file.relative_to(path)))]
    first = _first(fault.pattern, path, files)
    second = _first(fault.other, path, [file for file in files if file != first])
    return [first, second] if first is not None and second is not None else []


def _first(pattern: str, directory: Path, files: list[Path]) -> Path | None:
    return next((file for file in files if matches_path(pattern, str(file.relative_to(directory)))), None)


Sources = dict[Path, tuple[Entry, Path]]  # a file → its checkpoint, and the file whose content it gets


def _sources(fault: DamageFault, root: Path, targets: list[tuple[Entry, Path]]) -> Sources:
    """Which file each gets its content from; a file that has no counterpart is left out."""
    if fault.effect == "swap":
        pairs = zip(targets[::2], targets[1::2], strict=True)
        return {path: (entry, other) for one, two in pairs for (entry, path), (_, other) in ((one, two), (two, one))}
    if fault.effect != "replace":
        return {}
    entries = committed_entries(root)
    before = dict(zip(entries[1:], entries, strict=False))
    found: Sources = {}
    for entry, path in targets:
        if entry in before:
            source = root / before[entry].name / path.relative_to(root / entry.name)
            found.update({path: (entry, source)} if source.is_file() else {})
    return found


def _exchanged(sources: Sources, root: Path) -> list[Damaged]:
    """Gives every file its new content; all are read before the first is written, since they are each other's sources."""
    contents = {path: (path.read_bytes(), source.read_bytes()) for path, (_, source) in sources.items()}
    hit = []
    for path, (before, after) in contents.items():
        path.write_bytes(after)
        name = str(path.relative_to(root))
        hit.append(Damaged(name, sources[path][0], len(before), len(after), unchanged=before == after))
    return hit


def _hit(fault: DamageFault, root: Path, entry: Entry, path: Path) -> list[Damaged]:
    if fault.effect == "tamper":
        return _tampered(fault, root, entry, path)
    before = path.read_bytes()
    after = before
    if fault.effect == "delete":
        path.unlink()
        return [Damaged(str(path.relative_to(root)), entry, len(before), 0, unchanged=False)]
    assert fault.position is not None
    if fault.effect == "truncate":
        after = before[: fault.position.of(len(before))]
    elif (place := _byte_at(fault.position, len(before))) is not None:
        if fault.effect == "flip":
            after = before[:place] + bytes([before[place] ^ (1 << fault.bit)]) + before[place + 1 :]
        else:
            start = place - place % BLOCK_BYTES
            zeros = bytes(min(BLOCK_BYTES, len(before) - start))
            after = before[:start] + zeros + before[start + len(zeros) :]
    path.write_bytes(after)
    return [Damaged(str(path.relative_to(root)), entry, len(before), len(after), unchanged=before == after)]


def _tampered(fault: DamageFault, root: Path, entry: Entry, path: Path) -> list[Damaged]:
    """Tampers with a file; a file that has no such thing to tamper with is not hit."""
    hit = []
    for file, after in tamper.altered(fault.tampering, path, marker_of(root)).items():
        before = file.read_bytes()
        file.write_bytes(after)
        hit.append(Damaged(str(file.relative_to(root)), entry, len(before), len(after), unchanged=before == after))
    return hit


def marker_of(root: Path) -> Path:
    """What a hostile payload makes when its code runs: a directory beside the checkpoint directory."""
    return root.resolve().parent / tamper.MARKER_NAME


def _byte_at(position: Position, size_bytes: int) -> int | None:
    """The index that a position means; None where the file has no such byte, so that no other is hit in its stead."""
    if position.byte is not None and not -size_bytes <= position.byte < size_bytes:
        return None
    return min(position.of(size_bytes), size_bytes - 1) if size_bytes else None
