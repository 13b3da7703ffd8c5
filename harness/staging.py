"""From a recorded attempt and a crash state to the run directory of a case that died there: as if it had really been run so far.

Responsible for: the logs of the attempt up to the crash, what the supervisor would have written, and the checkpoint directory.
What follows (the restart) is run for real, and the judge sees one case like any other.
Not responsible for: whether the state is true (`tests/process/test_crash_states_are_real.py` compares them with real kills).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness import checkpoint_files, tree
from harness.crash_states import CrashState
from harness.grammar import parse
from harness.plan import Plan, make_plan
from harness.scenario import Scenario
from harness.seal import seal_of
from harness.store import Record, RecordWriter, RunDirectory, read_records
from harness.trace import Operation, Trace


@dataclass(frozen=True)
class Recorded:
    """An attempt that was run and recorded to its end.

    Attributes:
        scenario: of the whole case, without the crash that is to come.
        directory: its run directory, with the golden run and the attempts before.
        attempt: the index of the recorded attempt.
        trace: what it did.
    """

    scenario: Scenario
    directory: RunDirectory
    attempt: int
    trace: Trace

    @property
    def folder(self) -> Path:
        """The directory of the recorded attempt."""
        return self.directory.attempt(self.attempt)


def staged_plan(recorded: Recorded, state: CrashState, name: str, later: str = "") -> Plan:
    """The plan of a case that comes to a crash state, is started again, and, where there is a later fault, once more after it."""
    faults = (*recorded.scenario.faults, *state.faults, *([later] if later else []))
    attempts = max(recorded.scenario.max_attempts, recorded.attempt + 2 + bool(later))
    return make_plan(recorded.scenario.model_copy(update={"name": name, "faults": faults, "max_attempts": attempts}))


def stage(recorded: Recorded, state: CrashState, path: Path, plan: Plan) -> RunDirectory:
    """Makes the run directory of the case that ends in a crash state; its next attempt can be launched.

    Args:
        recorded: the attempt.
        state: the crash state.
        path: of the run directory.
        plan: of the case (`staged_plan`).

    Raises:
        FileExistsError: the directory exists.
    """
    directory = RunDirectory.create(path, plan)
    _link_tree(recorded.directory.golden, directory.golden)
    for index in range(recorded.attempt):
        _link_tree(recorded.directory.attempt(index), directory.attempt(index))
    tree.build(state.tree, recorded.trace.data, directory.checkpoints)
    folder = directory.attempt(recorded.attempt)
    folder.mkdir()
    _copy_rank_logs(recorded, state, folder)
    _write_operations(recorded, state, folder)
    _write_supervisor(recorded, state, folder, directory)
    return directory


def reuse(source: RunDirectory, target: RunDirectory, first: int) -> None:
    """Gives a case the restarts of another one that began with the same directory."""
    for index, folder in enumerate(source.attempts()):
        if index >= first:
            _link_tree(folder, target.attempt(index))


def _link_tree(source: Path, target: Path) -> None:
    # Logs are only ever appended to while their attempt runs, so that a second name costs nothing and changes nothing.
    shutil.copytree(source, target, copy_function=os.link, ignore=shutil.ignore_patterns("data.bin", "rendezvous*"))


def _copy_rank_logs(recorded: Recorded, state: CrashState, folder: Path) -> None:
    counts: dict[int, int] = {}
    for index in state.done:
        event = recorded.trace.events[index]
        if not isinstance(event, Operation):
            counts[event.rank] = counts.get(event.rank, 0) + 1
    for file in recorded.folder.glob("rank-*.jsonl"):
        rank = int(file.stem.removeprefix("rank-"))
        lines = file.read_bytes().splitlines(keepends=True)[: counts.get(rank, 0)]
        (folder / file.name).write_bytes(b"".join(lines))
    for file in recorded.folder.glob("*.std*"):
        os.link(file, folder / file.name)


def _write_operations(recorded: Recorded, state: CrashState, folder: Path) -> None:
    happened = {op.n for op in recorded.trace.operations}
    done = {op.n for index in state.done if isinstance(op := recorded.trace.events[index], Operation)}
    marks = {index for index in state.done if not isinstance(recorded.trace.events[index], Operation)}
    records, _ = read_records(recorded.folder / "operations.jsonl")
    place = -1
    kept = []
    for record in records:
        mark = record["event"] == "mark"
        place += mark or (record["event"] == "operation" and record["n"] in happened)
        if (mark and place in marks) or (not mark and record.get("n") in done):
            kept.append(record)
    if state.torn is not None:
        kept += [{**r, "tampered": state.faults[0]} for r in records if r["event"] == "operation" and r["n"] == state.torn.n]
    (folder / "operations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))


def _write_supervisor(recorded: Recorded, state: CrashState, folder: Path, directory: RunDirectory) -> None:
    records, _ = read_records(recorded.folder / "attempt.jsonl")
    log = RecordWriter(folder / "attempt.jsonl")
    owed = len(state.owed)
    last = recorded.trace.events[state.done[-1]].time_s if state.done else 0.0
    for record in records:
        event = record["event"]
        if event == "files" and record["moment"] == "begin":
            _again(log, record)
        elif event == "launched":
            _again(log, {**record, "faults": [*record["faults"], *state.faults]})
        elif event in ("started", "fired", "damaged"):
            _again(log, record)
        elif event == "committed" and owed:
            owed -= 1
            _again(log, record)
    for sentence in state.faults:
        _again(log, {"event": "fired", "time_s": last, **_fired(recorded, state, sentence)})
    ranks = sorted(record["rank"] for record in records if record["event"] == "started" and record["rank"] >= 0)
    for rank in ranks:
        log.write("killed", rank=rank, signal="SIGKILL", why="fault")
        exited = {"code": None, "signal": "SIGKILL", "kind": "own-kill", "max_memory_kib": 0, "cpu_s": 0.0}
        log.write("exited", rank=rank, **exited)
    log.write("files", moment="end", **checkpoint_files.listing(directory, directory.checkpoints))
    log.write("ended", duration_s=0.0, outcome="failed", rebuilt=True, sealed=seal_of(folder))
    log.close()


def _again(log: RecordWriter, record: Record) -> None:
    log.write(**record)  # with its own time, which the writer would stamp anew otherwise


def _fired(recorded: Recorded, state: CrashState, sentence: str) -> Record:
    fault = parse(sentence)
    rank = getattr(fault, "trigger", None)
    if rank is None:
        who = getattr(fault, "who", None)
        rank = who.ranks[0] if who is not None and who.ranks else 0
    facts: Record = {"fault": sentence, "rank": rank, "attempt": recorded.attempt}
    if state.torn is not None and sentence == state.faults[0]:
        facts |= {"operation": "write", "path": state.torn.path, "bytes_landed": state.landed}
    return facts
