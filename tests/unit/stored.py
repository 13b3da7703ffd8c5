"""Hand-written cases as run directories: what `histories` has in memory, written through the store's own writer and sealed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "oracle"))

import histories

from harness import seal
from harness.plan import make_plan
from harness.scenario import job
from harness.store import RankLog, Record, RecordWriter, RunDirectory

START = {"event": "launched", "log": seal.VERSION}


@contextlib.contextmanager
def _length(steps: int, save_every: int) -> Iterator[None]:
    before = histories.STEPS, histories.SAVE_EVERY
    histories.STEPS, histories.SAVE_EVERY = steps, save_every
    try:
        yield
    finally:
        histories.STEPS, histories.SAVE_EVERY = before


def stored_run(path: Path, *, steps: int = 24, ranks: int = 2, save_every: int = 4, killed: int = 14) -> Path:
    """A healthy case of which all that the judge reads is on disk: killed after a batch, resumed from the save before it, done.

    Args:
        path: of the run directory, which must not exist.
        steps: batches of the job.
        ranks: number of them, in both launches.
        save_every: batches between two saves.
        killed: the last batch of the first launch.
    """
    fault = f"sigkill rank 1 at step {killed}"
    resumed = killed - killed % save_every
    with _length(steps, save_every):
        case = job("single", ranks=ranks, faults=fault, steps=steps, save_every=save_every, keep_last=3, global_batch=ranks * 2)
        directory = RunDirectory.create(path, make_plan(case))
        golden = histories.baseline(ranks)
        there = tuple(range(save_every, resumed + 1, save_every))[-3:]
        how: dict[str, Any] = {"path": path, "ranks": ranks}
        hit = histories.fired(fault, time_s=1000.0 + killed, step=killed)
        first = histories.attempt(0, 1, killed, supervisor=(hit,), **how)
        second = histories.attempt(1, resumed + 1, steps, resumed=resumed, ended=True, before=there, **how)
    directory.golden.mkdir()
    _write_ranks(directory.golden, golden.ranks)
    facts = {"world_size": ranks, "unstable": "", "noise": [], "sealed": seal.seal_of(directory.golden)}
    (directory.golden / "baseline.json").write_text(json.dumps(facts))
    for one in (first, second):
        folder = directory.attempt(one.index)
        folder.mkdir()
        _write_ranks(folder, one.ranks)
        _write(folder / "operations.jsonl", one.operations)
        write_supervisor(folder, one.supervisor)
    return path


def write_supervisor(folder: Path, records: Sequence[Record]) -> None:
    """Writes `attempt.jsonl` with the version, and seals the attempt with its last record."""
    *others, ended = records
    _write(
        folder / "attempt.jsonl",
        [record | {"log": seal.VERSION} if record["event"] == "launched" else record for record in others],
    )
    _write(folder / "attempt.jsonl", [ended | {"sealed": seal.seal_of(folder)}])


def _write_ranks(folder: Path, ranks: dict[int, RankLog]) -> None:
    for rank, log in ranks.items():
        _write(folder / f"rank-{rank}.jsonl", log.records)


def _write(path: Path, records: Sequence[Record]) -> None:
    writer = RecordWriter(path)
    for record in records:
        writer.write(**record)
    writer.close()
