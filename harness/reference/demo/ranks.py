"""Training jobs of several ranks, each of which logs its losses; started, killed, and started again.

As a program it is one rank: `python -m harness.reference.demo.ranks LOG HOLD_AT ARGS`, where ARGS are those of
`harness.reference.train`, with which it differs by the log only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.reference import train
from harness.reference.demo.command import DemoError
from harness.reference.demo.processes import DEADLINE_S, Processes, die_with_parent, fork_ranks
from harness.reference.hooks import BatchReport, SkippedCheckpoint, TrainingHooks
from harness.reference.world import World

LAUNCHERS = ("fork", "process", "torchrun")
PROGRAM = "harness.reference.demo.ranks"


@dataclass(frozen=True)
class Row:
    """What one rank has logged of one batch; see `BatchReport`."""

    loss: float
    global_loss: float
    learning_rate: float
    scale: float | None
    tag: str


@dataclass
class RankLog:
    """All that one rank of one job has logged: its process, the checkpoint it began with, and its batches by number."""

    pid: int | None = None
    checkpoint: str | None = None
    rows: dict[int, Row] = field(default_factory=dict)


class LossLog(TrainingHooks):
    """Writes a line of JSON for each batch, with floats as exact hexadecimal text.

    Args:
        directory: Of the log.
        hold_at: The batch after which this rank waits to be killed, so that the kill strikes where it is meant to; 0 never.
    """

    def __init__(self, directory: Path, hold_at: int) -> None:
        self._directory = directory
        self._hold_at = hold_at
        self._path: Path | None = None

    def _write(self, **fields: Any) -> None:
        assert self._path is not None
        with self._path.open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def start(self, world: World, arguments: Sequence[str]) -> None:  # noqa: ARG002  the interface
        """Begin the log with the process that is to be killed."""
        self._path = log_path(self._directory, world.rank)
        self._write(pid=os.getpid())

    def resume(
        self,
        step: int,  # noqa: ARG002
        checkpoint: str | None,
        skipped: Sequence[SkippedCheckpoint],  # noqa: ARG002
        world_size_saved: int | None,  # noqa: ARG002
    ) -> None:
        """Record what training goes on from."""
        self._write(checkpoint=checkpoint)

    def batch(self, report: BatchReport) -> None:
        """Record one batch, and wait for the end after the last one that is to be done."""
        self._write(
            batch=report.batch,
            loss=report.loss.hex(),
            global_loss=report.global_loss.hex(),
            learning_rate=report.learning_rate.hex(),
            scale=None if report.scale is None else report.scale.hex(),
            tag="STEP" if report.reason is None else "SKIP",
        )
        if report.batch == self._hold_at:
            time.sleep(DEADLINE_S)
            raise DemoError(f"nobody has killed this rank within {DEADLINE_S:g} s after batch {report.batch}")


def log_path(directory: Path, rank: int) -> Path:
    """Return the file of a rank's log."""
    return directory / f"losses-{rank}.jsonl"


def read_log(directory: Path, rank: int) -> RankLog:
    """Read what a rank has logged so far; a line that is not complete yet is left out."""
    found, path = RankLog(), log_path(directory, rank)
    text = path.read_text() if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        fields = json.loads(line)
        if "batch" in fields:
            scale = None if fields["scale"] is None else float.fromhex(fields["scale"])
            numbers = [float.fromhex(fields[name]) for name in ("loss", "global_loss", "learning_rate")]
            found.rows[fields["batch"]] = Row(numbers[0], numbers[1], numbers[2], scale, fields["tag"])
        elif "pid" in fields:
            found.pid = fields["pid"]
        else:
            found.checkpoint = fields["checkpoint"]
    return found


def start_job(launcher: str, ranks: int, log: Path, arguments: Sequence[str], hold_at: int = 0) -> Processes:
    """Start all ranks of a job.

    Args:
        launcher: `fork` (fast), `process` (a fresh interpreter per rank) or `torchrun`.
        ranks: Their number.
        log: New directory for logs and output.
        arguments: Of the trainer.
        hold_at: See `LossLog`.
    """
    command = [sys.executable, "-m", PROGRAM, str(log), str(hold_at), *arguments]
    if launcher == "torchrun":
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", *command[2:]]
        return fork_ranks(lambda _: _become([sys.executable, "-m", *launch]), 1, log)
    meeting = ["--init-method", f"file://{log}/meeting"] if ranks > 1 else []
    if launcher == "process":
        return fork_ranks(lambda _: _become([*command, *meeting]), ranks, log)
    return fork_ranks(lambda _: train.main([*arguments, *meeting], LossLog(log, hold_at)), ranks, log)


def _become(command: list[str]) -> int:
    os.execv(command[0], command)  # noqa: S606  without a shell


def kill_job_after(job: Processes, ranks: int, batch: int, deadline_s: float = DEADLINE_S) -> list[int]:
    """Kill every rank with SIGKILL, by its own id, once each of them has done this batch; return the exit codes.

    Raises:
        DemoError: The job ended by itself, or did not come that far before the deadline.
    """
    deadline = time.monotonic() + deadline_s
    while not all(batch in read_log(job.log, rank).rows for rank in range(ranks)):
        if None not in job.codes():
            raise DemoError(f"the job ended before batch {batch}, exit codes {job.codes()}\n{job.output()}")
        if time.monotonic() > deadline:
            raise DemoError(f"batch {batch} was not reached within {deadline_s:g} s\n{job.output()}")
        time.sleep(0.02)
    for rank in range(ranks):
        pid = read_log(job.log, rank).pid  # under torchrun the ranks are its children, not this process's
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    return job.wait(deadline_s)


def main(argv: Sequence[str]) -> int:
    """Be one rank; see the module."""
    die_with_parent()
    return train.main(argv[2:], LossLog(Path(argv[0]), int(argv[1])))


if __name__ == "__main__":
    train.leave(main(sys.argv[1:]))
