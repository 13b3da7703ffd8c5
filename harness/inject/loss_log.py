"""A trainer's own log as its event log: which lines say the loss of a step.

For trainers that the probe cannot see into. Each write to the log passes the gate before it happens, as those to an event log
do, so that a rank is known to be exactly there. Responsible for: from what is written to records of `batch`, in the event logs of
all ranks, since one log speaks for the job; which of several kinds of lines counts (a line of the training loss stands beside one
of the evaluation), and what a step is called whose number begins again with each epoch. Not responsible for: states, samples,
saves: such a log says nothing of them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.store import Record, RecordWriter, read_records

STANDARD = "-"
_LINE_CHARACTERS = 10_000
_NEAR_CHARACTERS = 80
_MOST_NUMBER = 10**15
# What a progress bar draws ends with a carriage return.
_LINE_END = re.compile("[\r\n]")
# The word before the step and the words before the loss tell one kind of line from another: iter …: loss; step … train loss.
_LAST_WORD, _LAST_WORDS = re.compile(r"([^\W\d]+)\W*$"), re.compile(r"([^\W\d]+(?: [^\W\d]+)*)\W*$")


@dataclass(frozen=True)
class _Said:
    """What one line says.

    Attributes:
        place: epoch (0 where the line says none) and number of the step, by which a line is known again after a restart.
        loss: the loss.
        kind: which of the log's kinds of lines it is.
    """

    place: tuple[int, int]
    loss: float
    kind: str


class LossLog:
    """Reads what one attempt writes.

    Args:
        pattern: a regular expression with the groups `step` and `loss`, and `epoch` where steps are counted within epochs.
        folder: of the attempt, where its event logs go.
        num_ranks: how many event logs there are.
        golden: the logs of the uninterrupted run, if there is one yet: a batch is counted as there.
    """

    def __init__(self, pattern: str, folder: Path, num_ranks: int, golden: Path | None) -> None:
        self._pattern = re.compile(pattern)
        self._files = [folder / f"rank-{rank}.jsonl" for rank in range(num_ranks)]
        self._logs = [RecordWriter(file) for file in self._files]
        self._rest: dict[str, str] = {}
        usual = _batches(golden / "rank-0.jsonl") if golden is not None else []
        self._kind = usual[0].get("line") if usual else None
        self._usual = {_place(r): (int(r["batch"]), int(r["step"])) for r in usual} if golden is not None else None
        self._last: tuple[int, int] | None = None  # batch and step of the last line

    def read(self, path: str, data: bytes) -> list[Record]:
        """The records that a write makes, each as rank 0 wrote it; they are in the event logs then.

        Args:
            path: of the log; a line may come in several writes.
            data: what is about to be written.
        """
        *lines, rest = _LINE_END.split(self._rest.pop(path, "") + data.decode(errors="replace"))
        self._rest[path] = rest[-_LINE_CHARACTERS:]
        found: list[Record] = []
        for line in lines:
            match = self._pattern.search(line)
            said = None if match is None else _said(line, match)
            if said is not None and self._kind in (None, said.kind):
                found += self._take(said)
        return found

    def end(self, done: bool, reached: tuple[int, int]) -> None:
        """The attempt is over.

        Args:
            done: whether every process left with exit code 0, unasked.
            reached: batch and step that earlier attempts came to.
        """
        last = self._last or reached
        if self._usual is None and self._last is not None:
            last = self._settle()
        if done:
            self._write("end", step=last[1], batches=last[0])
        for log in self._logs:
            log.close()

    def _settle(self) -> tuple[int, int]:
        """Keeps, of the uninterrupted run, the kind of line that most are of, and names its steps; the last batch and step."""
        batches = _batches(self._files[0])
        # Of two that are as many, the one that came first.
        kind = Counter(str(record["line"]) for record in batches).most_common(1)[0][0]
        places = [_place(record) for record in batches if record["line"] == kind]
        numbers = [number for _, number in places]
        # Numbers that begin again with each epoch do not name a step of the job.
        steps = list(range(1, len(places) + 1)) if not rising(numbers) and rising(places) else numbers
        for file in self._files:
            others = [r for r in read_records(file)[0] if r["event"] != "batch" or r["line"] == kind]
            count = itertools.count()
            for record in others:
                if record["event"] == "batch":
                    index = next(count)
                    record |= {"batch": index + 1, "step": steps[index]}
            # The logs are open for what is still to be said, each line at the end of the file.
            file.write_text("".join(json.dumps(record) + "\n" for record in others))
        return len(steps), steps[-1]

    def _take(self, said: _Said) -> list[Record]:
        last = self._last or (0, 0)
        if self._usual is None:
            batch, step = last[0] + 1, said.place[1]
        elif said.place in self._usual:
            batch, step = self._usual[said.place]
        elif said.place > max(self._usual, default=(0, 0)):
            batch, step = self._beyond(said, last[0])
        else:
            return []  # the uninterrupted run said nothing of this step
        begun = [] if self._last is not None else self._begin(batch, step)
        self._last = (batch, step)
        place = {"epoch": said.place[0], "batch_in_epoch": said.place[1], "tag": "STEP", "reason": None, "line": said.kind}
        text = said.loss.hex()
        return [*begun, self._write("batch", batch=batch, step=step, **place, loss=text, global_loss=text)]

    def _beyond(self, said: _Said, last: int) -> tuple[int, int]:
        """Batch and step of a line that comes after all that the uninterrupted run has said."""
        usual = self._usual or {}
        batch = max(last, len(usual)) + 1
        counted = all(step == number for (_, number), (_, step) in usual.items())  # over all epochs
        return batch, said.place[1] if counted else batch

    def _begin(self, batch: int, step: int) -> list[Record]:
        before = max((s for b, s in (self._usual or {}).values() if b < batch), default=0)
        start = self._write("start", world_size=len(self._logs), pid=0)
        fresh = {"step": 0, "batch": 0, "checkpoint": None}
        where = fresh if batch == 1 else {"step": before, "batch": batch - 1, "checkpoint": f"(before step {step})"}
        return [start, self._write("resume", **where, skipped=[], world_size_saved=None, told_by="log")]

    def _write(self, event: str, **fields: Any) -> Record:
        for rank, log in enumerate(self._logs):
            log.write(event, rank=rank, **fields)
        return {"event": event, "rank": 0, **fields}


def rising(values: Sequence[Any]) -> bool:
    """Whether each value is above the one before it."""
    return all(one < other for one, other in itertools.pairwise(values))


def _said(line: str, match: re.Match[str]) -> _Said | None:
    """What a matching line says; None where its step or loss is no number."""
    numbers, before = match.groupdict(), [line[: match.start(name)][-_NEAR_CHARACTERS:] for name in ("step", "loss")]
    words = [found[1] if found else "" for found in (_LAST_WORD.search(before[0]), _LAST_WORDS.search(before[1]))]
    try:
        place = (int(numbers.get("epoch") or 0), int(numbers["step"].replace(",", "")))
        loss = float(numbers["loss"])
    except ValueError:
        return None
    return None if max(map(abs, place)) > _MOST_NUMBER else _Said(place, loss, " … ".join(words).lower())


def _batches(file: Path) -> list[Record]:
    return [record for record in read_records(file)[0] if record["event"] == "batch"]


def _place(record: Record) -> tuple[int, int]:
    """By what a line is known; a log of before there was a place has the step alone."""
    return (record["epoch"], record["batch_in_epoch"]) if "line" in record else (0, record["step"])


def reached_before(folders: list[Path]) -> tuple[int, int]:
    """Batch and step of the last line that these attempts' event logs hold; zeros where there is none."""
    for folder in reversed(folders):
        batches = _batches(folder / "rank-0.jsonl")
        if batches:
            return int(batches[-1]["batch"]), int(batches[-1]["step"])
    return 0, 0
