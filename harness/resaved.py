"""What was saved after a resume and is not what the uninterrupted run saved there: can it be resumed from? It is tried.

Left-over files of a torn save can end up in the next one: a trainer that finds a temporary file and takes it for its own commits
a torn checkpoint, which nobody reads as long as the job goes on. It may do so without saving anything, by renaming what it found.
Responsible for: finding such a save, or such a renaming, and the kill after it. Not responsible for: whether the checkpoint is
good; it may differ for many reasons, so that the restart is judged and not the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.store import RunDirectory, read_records

# Of one checkpoint, the length and the digest of each of its files.
Contents = tuple[tuple[object, ...], ...]
Usual = Mapping[int, tuple[Contents, bool]]  # step → what is saved there, and whether all undisturbed runs agree on the digests


def usual_saves(folders: Sequence[Path]) -> Usual:
    """What undisturbed runs of a job save at each step; steps on whose lengths they do not agree are left out.

    Args:
        folders: of the attempts.
    """
    runs = [_saves(folder) for folder in folders]
    found = {}
    for step, files in runs[0].items():
        others = [run.get(step, ()) for run in runs[1:]]
        if all(_lengths(other) == _lengths(files) for other in others):
            found[step] = (files, all(other == files for other in others))
    return found


def kill_after_unusual_save(directory: RunDirectory, first: int, usual: Usual, steps: int | None = None) -> str:
    """A kill soon after the first save that is not as usual, as a sentence; "" if all are, or nothing comes after it.

    Args:
        directory: of a case.
        first: the attempt to begin with.
        usual: what is saved without a crash.
        steps: of the whole job, where that is known.
    """
    index, step = _unusual(directory, first, usual)
    return f"sigkill all ranks at step {step} attempt {index}" if step and (steps is None or step <= steps) else ""


def _unusual(directory: RunDirectory, first: int, usual: Usual) -> tuple[int, int]:
    """The attempt, and a step after the unusual save in it; 0 where there is none."""
    for index, folder in list(enumerate(directory.attempts()))[first:]:
        if step := _leftover_renamed(folder):
            return index, step + 1
        for step, files in _saves(folder).items():
            known, exact = usual.get(step, (files, True))  # of other steps nothing is known
            if (files != known) if exact else (_lengths(files) != _lengths(known)):
                # An asynchronous save may be reported a while after its step; it is there before the next one.
                until = min((other for other in usual if other > step), default=step + 1)
                return index, step + max(1, (until - step) // 2)
    return 0, 0


def _leftover_renamed(folder: Path) -> int:
    """The step that was done when a file was given another name that had been there when the attempt began; 0 if none was."""
    listed = [record["files"] for record in read_records(folder / "attempt.jsonl")[0] if record["event"] == "files"]
    there = {
        "/".join(parts[:count])
        for path in (listed or [{}])[0]
        for parts in [path.split("/")]
        for count in range(1, len(parts) + 1)
    }
    step = 0
    for record in read_records(folder / "operations.jsonl")[0]:
        if record["event"] == "mark" and record.get("what") == "batch" and isinstance(record.get("step"), int):
            step = record["step"]
        elif record["event"] == "operation" and record["operation"] in ("open", "unlink", "rmdir", "rename", "link"):
            if record["operation"] in ("rename", "link") and step and record["path"] in there:
                return step
            there -= {record["path"], record.get("to")}  # made anew, emptied, or gone
    return 0


def _saves(folder: Path) -> dict[int, Contents]:
    records = [record for record in read_records(folder / "attempt.jsonl")[0] if record["event"] == "committed"]
    return {record["step"]: tuple(sorted(tuple(content) for content in record["files"].values())) for record in records}


def _lengths(files: Contents) -> list[str]:
    return sorted(str(content[0]) for content in files)
