"""The seal of an attempt: how long its logs were when it ended, and their sha256, so that a later change of any line is seen.

A log can lose, gain or swap lines and still be read without a complaint; what is then missing would pass for what never happened.
The last record of `attempt.jsonl`, `ended`, therefore has `sealed`: path → [size in bytes, sha256], of every log of the attempt
and of `attempt.jsonl` itself up to that record. `launched` has `log`, the version of all this, so that a seal that is missing is
told from an attempt of an older version, which has none.

Does not protect against whoever changes the seal as well; it is there for accidents, not for forgers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSION = "harness.log/1"
_OWN = "attempt.jsonl"


def seal_of(folder: Path) -> dict[str, list[Any]]:
    """The seal of the logs of an attempt as they are now."""
    names = sorted(path.name for path in folder.glob("rank-*.jsonl")) + [
        n for n in (_OWN, "operations.jsonl") if (folder / n).is_file()
    ]
    return {name: _sealed((folder / name).read_bytes()) for name in names}


def broken(folder: Path, launched: Mapping[str, Any] | None, ended: Mapping[str, Any] | None) -> list[str]:
    """What of an attempt is not as it was when it ended, one sentence each.

    Args:
        folder: of the attempt.
        launched: its record of the launch; None where it has none.
        ended: its record of the end; None where it has none.
    """
    version = None if launched is None else launched.get("log")
    if version is not None and version != VERSION:
        return [f"the attempt was recorded by another version ({version!r}); expected {VERSION!r}"]
    if ended is None:
        return []  # still being written, or the harness died: whoever reads it says so
    sealed = ended.get("sealed")
    if sealed is None and version is None:
        return []
    if version is None:
        return [f"{_OWN} has a seal, and its `launched` record no version: it was changed"]
    if not isinstance(sealed, dict):
        return [f"{_OWN} has no seal: it was changed, or the harness stopped while it wrote it"]
    return broken_files(folder, sealed, own=_OWN)


def broken_files(folder: Path, sealed: Mapping[str, Any], own: str = "") -> list[str]:
    """Which of the sealed files are not as they were, and which further logs there are; `own` ends with the seal itself."""
    there = {path.name for path in folder.glob("rank-*.jsonl")}
    found = [f"{name} was not there when the attempt ended" for name in sorted(there - sealed.keys())]
    for name, entry in sealed.items():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            found.append(f"{name} is gone, which was there when the attempt ended")
            continue
        if name == own:
            content = content[: _end_of_seal(content)]
        if _sealed(content) != entry:
            found.append(f"{name} is not as it was when the attempt ended: lines were changed, lost or added")
    return found


def _end_of_seal(content: bytes) -> int:
    """Where the last line begins, which must be the seal; of what is otherwise, the whole is compared and differs."""
    start = content.rstrip(b"\n").rfind(b"\n") + 1
    try:
        last = json.loads(content[start:])
    except (ValueError, RecursionError):
        return len(content)
    return start if isinstance(last, dict) and last.get("event") == "ended" else len(content)


def _sealed(content: bytes) -> list[Any]:
    return [len(content), hashlib.sha256(content).hexdigest()]
