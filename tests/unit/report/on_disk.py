"""Hand-written cases as run directories on disk, for reports that read them."""

from __future__ import annotations

import json
from pathlib import Path

import histories as h

from harness.case import judge_again, save_verdict
from harness.plan import write_plan
from harness.store import Baseline, Run

HOSTILE = "<script>alert(1)</script>"


def lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"time_s": 0.0, **record}) + "\n" for record in records))


def write_run(path: Path, run: Run, baseline: Baseline | None = None, *, judged: bool = True) -> Path:
    """The directory of a case, judged unless said otherwise."""
    path.mkdir(parents=True)
    write_plan(run.plan, path / "plan.toml")
    (path / "checkpoints").mkdir()
    golden = baseline or h.baseline()
    for rank, log in golden.ranks.items():
        lines(path / "golden" / f"rank-{rank}.jsonl", log.records)
    (path / "golden" / "baseline.json").write_text(json.dumps({"world_size": golden.world_size, "unstable": golden.unstable}))
    for attempt in run.attempts:
        folder = path / f"attempt-{attempt.index:03d}"
        lines(folder / "attempt.jsonl", attempt.supervisor)
        lines(folder / "operations.jsonl", attempt.operations)
        for rank, log in attempt.ranks.items():
            lines(folder / f"rank-{rank}.jsonl", log.records)
    if judged:
        assert save_verdict(judge_again(path), path) == ""
    return path


def named(run: Run, name: str) -> Run:
    """The same case by another name."""
    scenario = run.plan.scenario.model_copy(update={"name": name})
    return h.run_of(*run.attempts, case=scenario, path=Path("runs") / name)


def diverging(*, rank: int = 1, batch: int = 20) -> Run:
    """The case in which a rank has another loss than the uninterrupted run after the resume."""
    run = h.killed_and_resumed()
    for number in range(batch, h.STEPS + 1):
        h.row(run, 1, rank, number)["loss"] = (9.0 + number / 7).hex()
    return run


def operation(n, rank, what, path, time_s, **more):
    return {"event": "operation", "n": n, "rank": rank, "operation": what, "call": what, "path": path, "to": None} | {
        "size_bytes": 10,
        "tampered": None,
        "time_s": time_s,
        **more,
    }


def with_operations(run: Run) -> Run:
    """The case with a save of both ranks in its first attempt, in which the second one is killed."""
    first = run.attempts[0].operations
    start = 1000.0 + 14
    names = ("open", "write", "write", "fsync", "rename")
    for rank in (0, 1):
        first.append(
            {"event": "mark", "rank": rank, "what": "save", "moment": "begin", "step": 14, "checkpoint": "c", "time_s": start}
        )
    for number, what in enumerate(names):
        for rank in (0, 1):
            first.append(operation(2 * number + rank, rank, what, f"c/rank{rank}.bin.tmp", start + 0.01 * number))
    first.append(
        {"event": "mark", "rank": 0, "what": "save", "moment": "end", "step": 14, "checkpoint": "c", "time_s": start + 0.2}
    )
    return run
