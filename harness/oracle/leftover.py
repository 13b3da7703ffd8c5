"""What a kill has left half written is never given the name of a checkpoint.

Holds when no file that stands at the end of an attempt, under a name that the uninterrupted run ends with, has the very content
that the attempt before had left under another name when it was killed, where the uninterrupted run's file is longer by more than
chance: then it is a part of one. A restart that finds a temporary file and renames it unread does that, and nobody notices when
the job ends there.

Does not verify: the last bytes; names that the uninterrupted run does not end with; a part that was given its name and has been
written anew, or removed, by the end of that attempt; what the harness has damaged; attempts of which no listing was recorded.
"""

from __future__ import annotations

from harness.checkpoint_files import top_level
from harness.oracle.finding import Finding, fail
from harness.oracle.history import History
from harness.store import AttemptRun, Baseline, Files, Run

_ORACLE = "leftover"
# By so much a whole file may be shorter in another run, which has other times written into it; or by a hundredth.
_SLACK_BYTES = 64


def leftover(run: Run, baseline: Baseline) -> list[Finding]:
    """Compares what stands at the end of each restart with what was left before it."""
    if baseline.files is None:
        return []
    history = History(run, baseline)
    for attempt in run.attempts[1:]:
        left = run.attempts[attempt.index - 1].files("end") or {}
        hit = history.damaged(attempt.index)
        for path, whole in baseline.files.items():
            name = "" if top_level(path) in hit else _left_as(path, attempt, left, whole[0])
            if name:
                return [_taken(path, name, attempt, left[name][0], whole[0])]
    return []


def _left_as(path: str, attempt: AttemptRun, left: Files, size: int) -> str:
    """The other name under which the part of a file was left that now has this one; "" where it is no such part."""
    now = attempt.files("end") or {}
    content = now.get(path)
    if content is None or content[0] >= size - max(_SLACK_BYTES, size // 100) or left.get(path) == content:
        return ""
    return next((name for name, found in left.items() if name != path and found == content and name not in now), "")


def _taken(path: str, name: str, attempt: AttemptRun, size: int, whole: int) -> Finding:
    text = (
        f"at the end of attempt {attempt.index} {path} holds what the attempt before had left of it as {name} when it was killed:"
        f" {size} of {whole} bytes"
    )
    more = {"file": path, "attempt": attempt.index, "expected": f"{whole} bytes", "found": f"{size} bytes"}
    return fail("corrupt-accepted", _ORACLE, text, component="checkpoint-files", **more)
