"""Hand-written cases: logs as a healthy job would leave them, for tests to break one thing in.

The job: 24 batches, a save every 4, three checkpoints kept, two ranks unless said otherwise. Everything is a plain list or
dictionary, so that a test can change any record before it judges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.oracle.finding import Finding
from harness.plan import make_plan
from harness.scenario import Command, Scenario, job
from harness.store import AttemptRun, Baseline, RankLog, Record, Run, RunDirectory

STEPS, SAVE_EVERY, KEEP_LAST = 24, 4, 3
COMPONENTS = ("model", "buffers", "optimizer", "scheduler", "rng.python", "rng.torch", "data", "counters")
KILL = "sigkill rank 1 at step 14"
Skips = Mapping[int, str]


def digest(*words: object) -> str:
    """A made-up sha256."""
    return hashlib.sha256(repr(words).encode()).hexdigest()


def name_of(batch: int, format: str = "single") -> str:
    """The checkpoint that is saved after a batch."""
    return f"step-{batch:08d}" + (".pt" if format == "single" else "")


def files_of(batch: int, format: str = "single", ranks: int = 2) -> dict[str, list[Any]]:
    """The files of a checkpoint: path → [size in bytes, sha256]."""
    name = name_of(batch, format)
    paths = [name] if format == "single" else [f"{name}/rank{rank}.bin" for rank in range(ranks)] + [f"{name}/manifest.json"]
    return {path: [1000 + batch, digest(path)] for path in paths}


def updates(batch: int, skips: Skips = {}) -> int:  # noqa: B006  never changed
    """Optimizer updates done after a batch: a skipped one completes none."""
    return batch - sum(number <= batch for number in skips)


def loss_of(batch: int, rank: int | None = None) -> float:
    """The loss of a rank, or the global one."""
    return 3.0 - batch / 32 + (0.0 if rank is None else (rank - 0.5) / 64)


def batch_record(rank: int, batch: int, skips: Skips, time_s: float, scale: float | None = None) -> Record:
    """What a rank says after a batch."""
    skipped = batch in skips
    return {
        "event": "batch",
        "rank": rank,
        "time_s": time_s,
        "batch": batch,
        "step": updates(batch, skips),
        "epoch": batch // 12,
        "batch_in_epoch": batch % 12,
        "tag": "SKIP" if skipped else "STEP",
        "reason": skips.get(batch),
        "loss": "nan" if skipped else loss_of(batch, rank).hex(),
        "global_loss": "nan" if skipped else loss_of(batch).hex(),
        "learning_rate": (0.002).hex(),
        "scale": None if scale is None else scale.hex(),
        "grad_norm": (1.0).hex(),
        "samples": [batch * 12 + rank],
        "parameters_finite": True,
    }


def state_record(rank: int, moment: str, batch: int, skips: Skips, time_s: float) -> Record:
    """What a rank says of its state: a function of rank and batch."""
    digests = {component: digest(component, rank, batch) for component in COMPONENTS}
    step = updates(batch, skips)
    # Each rank holds everything, and draws from streams of its own.
    common = {name: digest(name, batch)[:16] for name in COMPONENTS if not name.startswith("rng")}
    said = {"event": "state", "rank": rank, "time_s": time_s, "moment": moment, "step": step}
    return {**said, "digests": digests, "common": common, "own": {}}


def rank_log(
    rank: int,
    first: int,
    last: int,
    *,
    resumed: int | None = 0,
    ended: bool = False,
    format: str = "single",
    skips: Skips = {},  # noqa: B006
    start_s: float = 0.0,
    scaled: bool = False,
) -> RankLog:
    """The event log of a rank that did batches `first` to `last`, having resumed from batch `resumed` (None: it never did)."""
    records: list[Record] = [{"event": "start", "rank": rank, "time_s": start_s, "world_size": 2, "pid": 100 + rank}]
    if resumed is not None:
        name, step = (name_of(resumed, format), updates(resumed, skips)) if resumed else (None, 0)
        told = {"event": "resume", "rank": rank, "time_s": start_s, "step": step, "checkpoint": name, "skipped": []}
        records.append(told)
    if resumed:
        records.append(state_record(rank, "load", resumed, skips, start_s))
    for batch in range(first, last + 1):
        time_s, step = start_s + batch, updates(batch, skips)
        scale = 4096.0 / 2 ** sum(number < batch for number in skips) if scaled else None
        records.append(batch_record(rank, batch, skips, time_s, scale))
        if batch % SAVE_EVERY == 0 or batch == STEPS:
            records.append(state_record(rank, "save", batch, skips, time_s + 0.1))
            saved = {"event": "save", "rank": rank, "step": step, "checkpoint": name_of(batch, format)}
            records += [{**saved, "moment": "begin", "time_s": time_s + 0.2}, {**saved, "moment": "end", "time_s": time_s + 0.3}]
    if ended:
        records.append(state_record(rank, "end", last, skips, start_s + last + 0.5))
        final = updates(STEPS, skips)
        records.append({"event": "end", "rank": rank, "time_s": start_s + last + 0.5, "step": final, "batches": STEPS})
    return RankLog(rank, records)


def baseline(ranks: int = 2, **how: Any) -> Baseline:
    """The uninterrupted run."""
    return Baseline(ranks, {rank: rank_log(rank, 1, STEPS, ended=True, **how) for rank in range(ranks)})


def exited(rank: int, code: int | None = 0, signal: str | None = None, kind: str = "exited", time_s: float = 0.0) -> Record:
    """What the supervisor says of an end."""
    return {"event": "exited", "time_s": time_s, "rank": rank, "code": code, "signal": signal, "kind": kind}


def fired(fault: str, rank: int = 1, time_s: float = 0.0, **facts: Any) -> Record:
    """What the supervisor says of a fault."""
    return {"event": "fired", "time_s": time_s, "fault": fault, "rank": rank, **facts}


def attempt(
    index: int,
    first: int,
    last: int,
    *,
    path: Path,
    ranks: int = 2,
    resumed: int | None = 0,
    ended: bool = False,
    format: str = "single",
    before: tuple[int, ...] = (),
    supervisor: tuple[Record, ...] = (),
    exits: tuple[Record, ...] | None = None,
    **how: Any,
) -> AttemptRun:
    """One launch: batches `first` to `last` on all ranks, each save committed, rotation done.

    Args:
        index: of the attempt.
        first: first batch that is done.
        last: last batch that is done.
        path: its directory; need not exist.
        ranks: number of ranks; `format` of the checkpoints; `ended` whether the job is done.
        resumed: batch of the checkpoint it began with, 0 for none, None for ranks that never got so far.
        before: batches of the checkpoints that are there when it begins.
        supervisor: further records, such as `fired`.
        exits: how the ranks ended; exit code 0 by default where `ended`, else killed by the harness.
        how: further settings of `rank_log`.
    """
    start_s = 1000.0 * (index + 1)
    logs = {
        rank: rank_log(rank, first, last, resumed=resumed, ended=ended, format=format, start_s=start_s, **how)
        for rank in range(ranks)
    }
    saved = [batch for batch in range(first, last + 1) if batch % SAVE_EVERY == 0 or batch == STEPS]
    kept = sorted({*before, *saved})[-KEEP_LAST:] if saved else list(before)
    records: list[Record] = [{"event": "files", "moment": "begin", "files": _all_files(before, format, ranks)}]
    records.append({"event": "launched", "index": index, "world_size": ranks, "launch": "warm", "faults": []})
    skips = how.get("skips", {})
    for batch in saved:
        facts = {"step": updates(batch, skips), "checkpoint": name_of(batch, format), "files": files_of(batch, format, ranks)}
        records.append({"event": "committed", "time_s": start_s + batch + 0.3, **facts})
    records += supervisor
    if exits is None:
        code, signal, kind = (0, None, "exited") if ended else (None, "SIGKILL", "own-kill")
        exits = tuple(exited(rank, code, signal, kind, start_s + last + 1) for rank in range(ranks))
    records += exits
    records.append({"event": "files", "moment": "end", "files": _all_files(kept, format, ranks)})
    records.append({"event": "ended", "duration_s": 1.5, "outcome": "done" if ended else "failed"})
    return AttemptRun(index, path / f"attempt-{index:03d}", logs, records, [], [])


def _all_files(batches: Any, format: str, ranks: int) -> dict[str, list[Any]]:
    return {path: content for batch in batches for path, content in files_of(batch, format, ranks).items()}


def scenario(faults: tuple[str, ...] = (KILL,), format: Any = "single", **settings: Any) -> Scenario:
    """The scenario of the job."""
    return job(format, faults=faults, steps=STEPS, save_every=SAVE_EVERY, keep_last=KEEP_LAST, **settings)


def run_of(*attempts: AttemptRun, case: Scenario | None = None, path: Path = Path("runs/case")) -> Run:
    """A stored case."""
    return Run(RunDirectory(path), make_plan(case or scenario()), list(attempts))


def killed_and_resumed(path: Path = Path("runs/case"), *, format: str = "single", **settings: Any) -> Run:
    """The healthy case: killed at step 14, resumed from step 12, done. Two steps are lost, nothing else."""
    how: dict[str, Any] = {"path": path, "format": format}
    first = attempt(0, 1, 14, supervisor=(fired(KILL, time_s=1014.5, operation="step", step=14),), **how)
    second = attempt(1, 13, STEPS, resumed=12, ended=True, before=(4, 8, 12), **how)
    return run_of(first, second, case=scenario(format=format, **settings), path=path)


def row(run: Run, index: int, rank: int, batch: int) -> Record:
    """The record of a batch, to be changed."""
    log = run.attempts[index].ranks[rank]
    log.__dict__.pop("batches", None)  # forget what was read before the change
    return next(r for r in log.records if r["event"] == "batch" and r["batch"] == batch)


def record(run: Run, index: int, event: str, **equal: Any) -> Record:
    """A record of the supervisor's, to be changed."""
    return run.attempts[index].of(event, **equal)[0]


def said(run: Run, index: int, rank: int, event: str, **equal: Any) -> Record:
    """A record of a rank's, to be changed."""
    return run.attempts[index].ranks[rank].of(event, **equal)[0]


def replace_exits(run: Run, index: int, *exits: Record) -> None:
    """Lets the ranks of an attempt end otherwise."""
    records = run.attempts[index].supervisor
    records[:] = [r for r in records if r["event"] != "exited"]
    records.extend(exits)


def foreign_workload(case: Scenario) -> Scenario:
    """The same case of a trainer of which nothing is known but its command."""
    command = Command(command=("python", "train.py"), steps=STEPS, save_every=SAVE_EVERY)
    return case.model_copy(update={"workload": command})


def kinds(findings: list[Finding]) -> list[str]:
    """The words of findings, in order."""
    return [finding.kind for finding in findings]


def only(findings: list[Finding], kind: str) -> Finding:
    """The one finding, which must be of this kind."""
    assert kinds(findings) == [kind], findings
    return findings[0]
