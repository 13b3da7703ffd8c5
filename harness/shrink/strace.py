"""A failure for people without the harness: the same death, or the same error, by `strace`.

Responsible for: saying which cases can be said that way, and saying them. It can be said where each attempt has one fault, which
comes right before a system call that is found by its name, the literal path and its number: `strace -P` knows no patterns, and
kills before a call, never after or within. Not with `--seccomp-bpf`, under which strace forgets the signal without a word.

Source: strace(1); strace counts per thread and per name of a call.
"""

from __future__ import annotations

import os
import shlex

from harness.fault import ErrnoFault, Fault, OperationPoint, SignalFault
from harness.launch.command import fill
from harness.oracle.history import parse_quietly
from harness.scenario import Command
from harness.store import AttemptRun, Record, Run

_CKPT = "CKPT"
# What strace takes by the path, because the call has it or a descriptor of it.
_CALLS_BY_PATH = frozenset({"openat", "open", "write", "pwrite64", "fsync", "fdatasync", "rename", "renameat", "renameat2"})


def strace_lines(run: Run, again: Run | None) -> tuple[list[str], str]:
    """The lines, one per attempt.

    Args:
        run: in which the case failed.
        again: another run of it, by which names that differ from run to run are known; None where there is none.

    Returns:
        The lines, comments among them, and why there are none, "" where there are.
    """
    workload = run.plan.scenario.workload
    if not isinstance(workload, Command):
        return [], "the reference trainer is started by the harness, and not by a command"
    if run.plan.numeric or any(plan.damage or plan.disk for plan in run.plan.attempts):
        return [], "strace knows no bad batches, full disks or damaged files"
    lines = [
        f"# In the folder that the job is started in; {_CKPT} is an empty directory.",
        "# One line after the other, each once. Not with --seccomp-bpf.",
    ]
    for attempt in run.attempts:
        faults = run.plan.attempts[attempt.index].live
        words = workload.command if attempt.index == 0 or not workload.resume_command else workload.resume_command
        values = {"ckpt": _CKPT, "python": "python", "world_size": str(attempt.world_size)}
        command = shlex.join(fill(word, values) for word in words)
        if not faults:
            lines.append(command)
            continue
        if len(faults) > 1:
            return [], f"attempt {attempt.index} has {len(faults)} faults"
        said, why = _injection(faults[0], attempt, _same_attempt(again, attempt.index))
        if why:
            return [], f"'{faults[0]}': {why}"
        lines.append(f"strace -f -o /dev/null {said} {command}")
    return lines, ""


def _same_attempt(run: Run | None, index: int) -> AttemptRun | None:
    return run.attempts[index] if run is not None and index < len(run.attempts) else None


def _injection(fault: Fault, attempt: AttemptRun, again: AttemptRun | None) -> tuple[str, str]:
    """The options of strace, or why there are none."""
    if not isinstance(fault, (SignalFault, ErrnoFault)) or not isinstance(fault.point, OperationPoint):
        return "", "it does not come at a system call"
    if fault.point.moment != "before" or (isinstance(fault, ErrnoFault) and fault.times != 1):
        return "", "strace injects before a call, once"
    if isinstance(fault, SignalFault) and attempt.world_size > 1:
        return "", "strace kills one process, and the job has several ranks"
    record = next((r for r in attempt.operations if parse_quietly(r.get("tampered")) == fault), None)
    if record is None:
        return "", "it was not seen to fire"
    path, call = str(record["path"]), str(record["call"])
    if call not in _CALLS_BY_PATH or path == ".":
        return "", f"strace cannot tell this {call} by its path"
    if call.startswith("open") and path in (attempt.files("begin") or {}):
        return "", "strace also counts the opens that only read"
    other = next((r for r in again.operations if parse_quietly(r.get("tampered")) == fault), None) if again else None
    if other is None or other["path"] != path:
        return (
            "",
            "the name of the file is another one in each run" if other else "there was no time for the second run that shows it",
        )
    when = _when(record, attempt)
    what = f"signal={fault.signal.upper()}" if isinstance(fault, SignalFault) else f"error={fault.errno_name}"
    target = shlex.quote(os.path.join(_CKPT, path))  # noqa: PTH118  a text, and no path of this machine
    return f"-P {target} -e trace={call} -e inject={call}:{what}:when={when}", ""


def _when(record: Record, attempt: AttemptRun) -> int:
    """Which call of this name on this path it is."""
    same = [r for r in attempt.operations if r["event"] == "operation" and r["n"] <= record["n"] and r["pid"] == record["pid"]]
    return sum(r["call"] == record["call"] and record["path"] in (r["path"], r["to"]) for r in same)
