"""What a kill has left half written is never given the name of a checkpoint.

Holds when no file of a checkpoint that stands at the end of an attempt, under a name that the uninterrupted run ends with, has
the very content that the attempt before had left under another name, where the uninterrupted run's file is longer by more than
chance: then it is a part of one. A restart that finds a temporary file and renames it unread does that, and nobody notices when
the job ends there.

Does not verify: the last bytes; what the uninterrupted run has not said to be a checkpoint, such as a log beside it; names that
it does not end with; a part that was given its name and has been written anew, or removed, by the end of that attempt; what the
harness has damaged; attempts of which no listing was recorded.
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
    history, saved = History(run, baseline), _saved(baseline)
    for attempt in run.attempts[1:]:
        left = run.attempts[attempt.index - 1].files("end") or {}
        hit = history.damaged(attempt.index)
        for path, whole in baseline.files.items():
            top = top_level(path)
            name = _left_as(path, attempt, left, whole[0]) if top in saved and top not in hit else ""
            if name:
                return [_taken(path, name, attempt, left[name][0], whole[0])]
    return []


def _saved(baseline: Baseline) -> set[str]:
    """The top-level names of the uninterrupted run's checkpoints."""
    saves = [record for log in baseline.ranks.values() for record in log.of("save") if record.get("checkpoint")]
    return {top_level(str(name)) for record in saves for name in (record["checkpoint"], *(record.get("also") or ()))}


def _left_as(path: str, attempt: AttemptRun, left: Files, size: int) -> str:
    """The other name under which the part of a file was left that now has this one; "" where it is no such part."""
    now = attempt.files("end") or {}
    content = now.get(path)
    if content is None or content[0] >= size - max(_SLACK_BYTES, size // 100) or left.get(path) == content:
        return ""
    return next((name for name, found in left.items() if name != path and found == content and name not in now), "")


def _taken(path: str, name: str, attempt: AttemptRun, size: int, whole: int) -> Finding:
    text = (
        f"at the end of attempt {attempt.index} {path} holds what the attempt before had left of it as {name}: "
        f"{size} of {whole} bytes"
    )
    more = {"file": path, "attempt": attempt.index, "expected": f"{whole} bytes", "found": f"{size} bytes"}
    return fail("corrupt-accepted", _ORACLE, text, component="checkpoint-files", **more)
