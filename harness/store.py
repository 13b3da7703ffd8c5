"""The run directory: what a case leaves behind, and the only thing that the judge looks at.

Responsible for: names of files, appending records, and reading them back into `Run` and `Baseline`. Append-only, one
`write` a record, so that a killed harness leaves a directory that can still be judged.
Not responsible for: what the records mean (docs/event-log.md says it, `harness.oracle` judges it).

Layout::

    plan.toml                     the plan, which is the replay file
    golden/rank-0.jsonl …         the uninterrupted run's event logs (a copy of the baseline), golden/baseline.json
    checkpoints/                  the checkpoint directory of the case
    attempt-000/rank-0.jsonl      what that rank said (docs/event-log.md)
    attempt-000/attempt.jsonl     what the supervisor did and saw
    attempt-000/operations.jsonl  file operations of all ranks below the checkpoint directory, in one order
    attempt-000/rank-0.stdout, rank-0.stderr
    verdict.json
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import seal
from harness.errors import UsageError
from harness.log_fields import wrong_field
from harness.plan import Plan, read_plan, write_plan
from harness.scenario import MAX_RANKS

Record = dict[str, Any]
Files = dict[str, tuple[int, str]]  # relative path → (size in bytes, sha256)


class RecordWriter:
    """Appends JSON lines to a file; each line is one `write`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """Appends one record, stamped with the time."""
        record = {"event": event, "time_s": time.time(), **fields}
        os.write(self._fd, (json.dumps(record) + "\n").encode())

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """All records of a log, and what was wrong with it.

    Returns:
        The records that could be read, and one sentence per line that could not.
    """
    if not path.exists():
        return [], []
    if not path.is_file():
        return [], [f"{path.name} is no file"]
    try:
        content = path.read_bytes()
    except OSError as error:
        return [], [f"{path.name} cannot be read: {error.strerror}"]
    records: list[Record] = []
    problems: list[str] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            problems.append(f"{path.name} line {number} is not JSON: {line[:60]!r}")
            continue
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            problems.append(f"{path.name} line {number} is no event record: {line[:60]!r}")
        elif wrong := wrong_field(record):
            problems.append(f"{path.name} line {number} has no usable {wrong!r} in its {record['event']!r} record: {line[:60]!r}")
        else:
            records.append(record)
    return records, problems


@dataclass(frozen=True)
class RunDirectory:
    """Names of everything in a run directory."""

    path: Path

    @classmethod
    def create(cls, path: Path, plan: Plan) -> RunDirectory:
        """Makes the directory and saves the plan, before anything else happens.

        Raises:
            FileExistsError: it exists; a run directory is never used twice.
        """
        path.mkdir(parents=True)
        directory = cls(path)
        write_plan(plan, directory.plan_file)
        directory.checkpoints.mkdir()
        return directory

    @property
    def plan_file(self) -> Path:
        """The replay file."""
        return self.path / "plan.toml"

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory of the case."""
        return self.path / "checkpoints"

    @property
    def golden(self) -> Path:
        """The uninterrupted run."""
        return self.path / "golden"

    @property
    def verdict_file(self) -> Path:
        """What the judge said."""
        return self.path / "verdict.json"

    def attempt(self, index: int) -> Path:
        """The directory of one launch, whether it was launched or not."""
        return self.path / f"attempt-{index:03d}"

    def attempts(self) -> Iterator[Path]:
        """The attempts that were launched, in order."""
        index = 0
        while self.attempt(index).is_dir():
            yield self.attempt(index)
            index += 1


def parse_float(text: Any) -> float:
    """A logged number: `float.hex()`, "nan", "inf", "-inf", or a plain JSON number; anything else is NaN."""
    try:
        if isinstance(text, (int, float)) and not isinstance(text, bool):
            return float(text)
        # `fromhex` reads "2.5" too, as hexadecimal: 2.3125.
        return float.fromhex(text) if "0x" in text or text in ("nan", "inf", "-inf") else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True)
class Batch:
    """One batch of one rank (docs/event-log.md has the meaning and the units)."""

    batch: int
    step: int
    epoch: int
    batch_in_epoch: int
    tag: str
    reason: str | None
    loss: float
    global_loss: float | None
    scale: float | None
    samples: tuple[int, ...]
    parameters_finite: bool
    grad_norm: float = math.nan
    max_norm: float = math.nan
    stepped_norm: float | None = None
    micro_batches: int | None = None
    learning_rate: float = math.nan

    @classmethod
    def of(cls, record: Record) -> Batch:
        """Reads a `batch` record. Raises: KeyError, TypeError, ValueError, OverflowError where it is not one."""
        return cls(
            batch=int(record["batch"]),
            step=int(record["step"]),
            epoch=int(record["epoch"]),
            batch_in_epoch=int(record["batch_in_epoch"]),
            tag=str(record["tag"]),
            reason=record.get("reason"),
            loss=parse_float(record["loss"]),
            global_loss=None if record["global_loss"] is None else parse_float(record["global_loss"]),
            scale=None if record.get("scale") is None else parse_float(record["scale"]),
            samples=tuple(int(index) for index in record.get("samples", ())),
            parameters_finite=bool(record.get("parameters_finite", True)),
            grad_norm=parse_float(record.get("grad_norm", "nan")),
            max_norm=parse_float(record.get("max_norm", "nan")),
            stepped_norm=None if record.get("stepped_norm") is None else parse_float(record["stepped_norm"]),
            micro_batches=None if record.get("micro_batches") is None else int(record["micro_batches"]),
            learning_rate=parse_float(record.get("learning_rate")),
        )


@dataclass(frozen=True)
class RankLog:
    """Everything that one rank said in one attempt."""

    rank: int
    records: list[Record]
    problems: list[str] = field(default_factory=list)

    def of(self, event: str, **equal: Any) -> list[Record]:
        """The records of one event whose fields have these values."""
        return [r for r in self.records if r["event"] == event and all(r.get(k) == v for k, v in equal.items())]

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches in the order in which they were done; records that are no batches are left out."""
        found = []
        for record in self.of("batch"):
            try:
                found.append(Batch.of(record))
            except (KeyError, TypeError, ValueError, OverflowError):
                self.problems.append(f"rank {self.rank}: malformed batch record {record!r:.80}")
        return found

    @property
    def resumed_from(self) -> int | None:
        """The batch number of the checkpoint that was loaded, 0 for a fresh start, None if it never got that far."""
        records = self.of("resume")
        return int(records[0]["step"]) if records else None

    @property
    def ended(self) -> bool:
        """Whether the rank said that all planned work is done."""
        return bool(self.of("end"))


@dataclass(frozen=True)
class AttemptRun:
    """One attempt as it was recorded."""

    index: int
    path: Path
    ranks: dict[int, RankLog]
    supervisor: list[Record]
    operations: list[Record]
    problems: list[str]

    def of(self, event: str, **equal: Any) -> list[Record]:
        """The supervisor's records of one event whose fields have these values."""
        return [r for r in self.supervisor if r["event"] == event and all(r.get(k) == v for k, v in equal.items())]

    @property
    def world_size(self) -> int:
        """Number of ranks that were launched; of event logs, where the launch was not recorded."""
        launched = self.of("launched")
        return int(launched[0]["world_size"]) if launched else len(self.ranks)

    @property
    def exits(self) -> dict[int, Record]:
        """The `exited` record of each rank (rank -1: a launcher such as torchrun)."""
        return {int(r["rank"]): r for r in self.of("exited")}

    def stderr(self, rank: int) -> str:
        """What that rank (or the launcher that made it) wrote to stderr."""
        for name in (f"rank-{rank}.stderr", "launcher.stderr"):
            if (self.path / name).exists():
                return (self.path / name).read_text(errors="replace")
        return ""

    def heads(self, moment: str) -> dict[str, list[tuple[int, str]]]:
        """Of files that had grown since a commit, or since an attempt began, their content up to the length of then."""
        records = self.of("files", moment=moment)
        heads = records[-1].get("heads", {}) if records else {}
        return {path: [(int(size), digest) for size, digest in entries] for path, entries in heads.items()}

    def files(self, moment: str) -> Files | None:
        """The checkpoint directory at the `begin` or `end` of the attempt; None if that was not recorded."""
        return _files_in(self.of("files", moment=moment))


def _files_in(records: list[Record]) -> Files | None:
    """The last of these listings."""
    return {path: (int(size), digest) for path, (size, digest) in records[-1]["files"].items()} if records else None


@dataclass(frozen=True)
class Run:
    """A stored case."""

    directory: RunDirectory
    plan: Plan
    attempts: list[AttemptRun]

    @property
    def problems(self) -> list[str]:
        """What was wrong with the logs themselves."""
        found = []
        for attempt in self.attempts:
            found += attempt.problems
            for log in attempt.ranks.values():
                _ = log.batches  # malformed batches are found when they are first read
                found += log.problems
        return found


@dataclass(frozen=True)
class Baseline:
    """The uninterrupted run.

    Attributes:
        world_size: number of ranks it ran on.
        ranks: event log per rank.
        unstable: empty if the two golden runs were identical, else the first difference in words.
        noise: components whose digests differed between the two, such as a generator that nobody has seeded, although all
            batches were equal.
        other_launch: why the second run was not started in the faster way, in words; "" where it was, or none was asked for.
        files: what it left in the checkpoint directory; None where that was not recorded.
        flipped: batches done → event log per rank of the same run with the last bit of every weight flipped there.
        problems: what of its files is not as it was stored.
    """

    world_size: int
    ranks: dict[int, RankLog]
    unstable: str = ""
    noise: frozenset[str] = frozenset()
    other_launch: str = ""
    files: Files | None = None
    flipped: dict[int, dict[int, RankLog]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_rank_logs(path: Path) -> dict[int, RankLog]:
    """The event logs `rank-N.jsonl` in a directory."""
    logs = {}
    for file in path.glob("rank-*.jsonl"):
        number = file.stem.removeprefix("rank-")
        if number.isdecimal():
            records, problems = read_records(file)
            # Each rank has a file of its own; what another one says in it got there by accident.
            others = {r["rank"] for r in records if r.get("rank") not in (None, int(number))}
            problems += [f"{file.name} has records of rank {other}" for other in sorted(others)]
            logs[int(number)] = RankLog(int(number), records, problems)
    _fill_global_losses(logs)
    return dict(sorted(logs.items()))


def _fill_global_losses(logs: dict[int, RankLog]) -> None:
    """Where ranks know only their own loss, the mean over all of them, of the batches that all of them have done."""
    open_records: dict[str, list[Record]] = {}
    for log in logs.values():
        for record in log.of("batch"):
            if "global_loss" in record and record["global_loss"] is None:
                open_records.setdefault(repr(record.get("batch")), []).append(record)  # which may be anything
    sizes = [record.get("world_size") for log in logs.values() for record in log.of("start")]
    for records in open_records.values():
        if sizes and len(records) == sizes[0]:
            mean = _mean([parse_float(record.get("loss")) for record in records])
            for record in records:
                record["global_loss"] = mean.hex() if math.isfinite(mean) else str(mean)


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except ValueError:  # infinities of both signs
        return math.nan
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def read_attempt(path: Path) -> AttemptRun:
    """Reads one `attempt-NNN` directory."""
    supervisor, problems = read_records(path / "attempt.jsonl")
    operations, more = read_records(path / "operations.jsonl")
    launched = any(record["event"] == "launched" for record in supervisor)
    if launched and not (path / "operations.jsonl").exists():
        more.append("operations.jsonl is missing, so nobody knows what the ranks wrote")
    more += seal.broken(path, _last(supervisor, "launched"), _last(supervisor, "ended"))
    index = int(path.name.removeprefix("attempt-"))
    return AttemptRun(index, path, read_rank_logs(path), supervisor, operations, problems + more)


def _last(records: list[Record], event: str) -> Record | None:
    return next((record for record in reversed(records) if record["event"] == event), None)


def read_run(path: Path) -> Run:
    """Reads a run directory.

    Raises:
        UsageError: there is no readable plan in it.
    """
    directory = RunDirectory(path)
    return Run(directory, read_plan(directory.plan_file), [read_attempt(attempt) for attempt in directory.attempts()])


def flipped_folder(golden: Path, after: int) -> Path:
    """Where the logs of the run lie in which the last bit of every weight was flipped after so many batches."""
    return golden / f"flipped-{after:08d}"


def read_flipped(golden: Path) -> dict[int, dict[int, RankLog]]:
    """Batches done → event logs of the run in which the last bit of every weight was flipped there."""
    found = {folder.name.removeprefix("flipped-"): folder for folder in sorted(golden.glob("flipped-*"))}
    return {int(after): read_rank_logs(folder) for after, folder in found.items() if after.isdecimal()}


def read_baseline(path: Path) -> Baseline:
    """Reads a `golden` directory.

    Raises:
        UsageError: `baseline.json` (written last, so a baseline without it is not complete) is missing, or is not what was
            written.
    """
    file = path / "baseline.json"
    try:
        facts = json.loads(file.read_bytes())
        world_size, unstable = int(facts["world_size"]), str(facts["unstable"])
        if not 1 <= world_size <= MAX_RANKS:
            raise ValueError(f"world_size {world_size}")
        sealed = facts.get("sealed")
        problems = seal.broken_files(path, sealed) if isinstance(sealed, dict) else []
        noise = frozenset(map(str, facts.get("noise", ())))
        said, unread = read_records(path / "attempt.jsonl")
        problems += unread
        left = _files_in([record for record in said if (record["event"], record.get("moment")) == ("files", "end")])
        other = str(facts.get("other_launch", ""))
        return Baseline(world_size, read_rank_logs(path), unstable, noise, other, left, read_flipped(path), tuple(problems))
    except OSError as error:
        raise UsageError(
            [f"cannot read the baseline {file}: {error.strerror}; without it there is nothing to compare with"]
        ) from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError([f"{file} is damaged ({error!r}); expected world_size and unstable, as the run wrote them"]) from None
