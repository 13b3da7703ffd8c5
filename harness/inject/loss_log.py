"""A trainer's own log as its event log: which lines say the loss of a step.

For trainers that the probe cannot see into. Each write to the log passes the gate before it happens, as those to an event log
do, so that a rank is known to be exactly there. Responsible for: from what is written to records of `batch`, in the event logs of
all ranks, since one log speaks for the job. Not responsible for: states, samples, saves: such a log says nothing of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.store import Record, RecordWriter, read_records

STANDARD = "-"
_LINE_CHARACTERS = 10_000


class LossLog:
    """Reads what one attempt writes.

    Args:
        pattern: a regular expression with the groups `step` and `loss`.
        folder: of the attempt, where its event logs go.
        num_ranks: how many event logs there are.
        golden: the logs of the uninterrupted run, if there is one yet: a batch is counted as there.
    """

    def __init__(self, pattern: str, folder: Path, num_ranks: int, golden: Path | None) -> None:
        self._pattern = re.compile(pattern)
        self._logs = [RecordWriter(folder / f"rank-{rank}.jsonl") for rank in range(num_ranks)]
        self._rest: dict[str, str] = {}
        usual = read_records(golden / "rank-0.jsonl")[0] if golden is not None else []
        self._usual = {int(r["step"]): int(r["batch"]) for r in usual if r["event"] == "batch"} if golden is not None else None
        self._last: tuple[int, int] | None = None  # batch and step of the last line

    def read(self, path: str, data: bytes) -> list[Record]:
        """The records that a write makes, each as rank 0 wrote it; they are in the event logs then.

        Args:
            path: of the log; a line may come in several writes.
            data: what is about to be written.
        """
        *lines, rest = (self._rest.pop(path, "") + data.decode(errors="replace")).split("\n")
        self._rest[path] = rest[-_LINE_CHARACTERS:]
        found: list[Record] = []
        for line in lines:
            match = self._pattern.search(line)
            if match is not None and (numbers := _numbers(match["step"], match["loss"])) is not None:
                found += self._take(*numbers)
        return found

    def end(self, done: bool, reached: tuple[int, int]) -> None:
        """The attempt is over.

        Args:
            done: whether every process left with exit code 0, unasked.
            reached: batch and step that earlier attempts came to.
        """
        if done:
            batch, step = self._last or reached
            self._write("end", step=step, batches=batch)
        for log in self._logs:
            log.close()

    def _take(self, step: int, loss: float) -> list[Record]:
        last = self._last or (0, 0)
        if self._usual is None:
            batch = last[0] + 1
        elif step in self._usual:
            batch = self._usual[step]
        elif step > max(self._usual, default=0):
            batch = max(last[0], len(self._usual)) + 1
        else:
            return []  # the uninterrupted run said nothing of this step
        begun = [] if self._last is not None else self._begin(batch, step)
        self._last = (batch, step)
        place = {"epoch": 0, "batch_in_epoch": 0, "tag": "STEP", "reason": None}
        text = loss.hex()
        return [*begun, self._write("batch", batch=batch, step=step, **place, loss=text, global_loss=text)]

    def _begin(self, batch: int, step: int) -> list[Record]:
        before = max((s for s, b in (self._usual or {}).items() if b < batch), default=0)
        start = self._write("start", world_size=len(self._logs), pid=0)
        fresh = {"step": 0, "batch": 0, "checkpoint": None}
        where = fresh if batch == 1 else {"step": before, "batch": batch - 1, "checkpoint": f"(before step {step})"}
        return [start, self._write("resume", **where, skipped=[], world_size_saved=None, told_by="log")]

    def _write(self, event: str, **fields: Any) -> Record:
        for rank, log in enumerate(self._logs):
            log.write(event, rank=rank, **fields)
        return {"event": event, "rank": 0, **fields}


def _numbers(step: str, loss: str) -> tuple[int, float] | None:
    try:
        return int(step.replace(",", "")), float(loss)
    except ValueError:
        return None


def reached_before(folders: list[Path]) -> tuple[int, int]:
    """Batch and step of the last line that these attempts' event logs hold; zeros where there is none."""
    for folder in reversed(folders):
        batches = [r for r in read_records(folder / "rank-0.jsonl")[0] if r["event"] == "batch"]
        if batches:
            return int(batches[-1]["batch"]), int(batches[-1]["step"])
    return 0, 0
