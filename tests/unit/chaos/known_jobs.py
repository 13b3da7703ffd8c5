"""A job as its undisturbed run tells of it, without a process: 6 steps, a save after every second, one or two ranks."""

from __future__ import annotations

from harness.chaos.places import JobMap, Place, read_places

FILES = {f"ckpt-{step:03d}.bin": 1000 for step in (4, 6)}


def records(ranks=1, marks=True):
    """The records of `operations.jsonl`; rank 0 commits."""
    found = []

    def mark(rank, what, step=None, moment=None):
        found.append({"event": "mark", "rank": rank, "what": what, "step": step, "moment": moment})

    def did(rank, operation, path, to=None, size=0):
        found.append({"event": "operation", "rank": rank, "operation": operation, "path": path, "to": to, "size_bytes": size})

    for rank in range(ranks):
        mark(rank, "start")
        mark(rank, "resume", step=0)
    for step in range(1, 7):
        for rank in range(ranks):
            mark(rank, "batch", step=step)
        if step % 2:
            continue
        for rank in range(ranks):
            if marks:
                mark(rank, "save", step=step, moment="begin")
            did(rank, "write", f"ckpt-{step:03d}.bin.tmp" if rank == 0 else "other.tmp", size=1000)
        did(0, "rename", f"ckpt-{step:03d}.bin.tmp", to=f"ckpt-{step:03d}.bin")
        did(0, "fsync", ".")
        for rank in range(ranks if marks else 0):
            mark(rank, "save", step=step, moment="end")
    return found


def job(ranks=1, marks=True, **changes):
    places, steps_at, starts = read_places(records(ranks, marks))
    recovery = (Place(2, 0, "open", "ckpt-*.bin", ("ckpt-006.bin",), 0, "recovery", 0),)
    facts = {"recovery": recovery, "standing": 2, "save_bytes": 1000, "sizes": (), "told": tuple(steps_at[0])}
    return JobMap(ranks, 6, 6, places, steps_at, starts, **{**facts, **changes})
