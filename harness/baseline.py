"""The golden run: the same job without a crash, run twice, kept and shared.

Responsible for: running it (with the numeric faults of the scenario, which belong to the data), comparing the two runs
record by record, and a cache keyed by everything that decides the numbers: workload, seed, ranks, numeric faults,
versions, source of the reference trainer, processor. Workers of a test session share it under a file lock.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
from filelock import FileLock

from harness.errors import LaunchError, UsageError
from harness.launch.command import fill
from harness.launch.connection import Launcher
from harness.launch.understood import keeps_out
from harness.plan import Plan, make_plan, versions
from harness.scenario import Command, Launch, Reference, Scenario
from harness.seal import seal_of
from harness.store import (
    Baseline,
    RankLog,
    Record,
    RunDirectory,
    flipped_folder,
    parse_float,
    read_baseline,
    read_rank_logs,
    read_records,
)
from harness.supervisor import run_attempts

_LOCK_S = 600.0
# What must be equal in the two golden runs; times and process ids may differ.
_COMPARED = (
    "batch",
    "step",
    "epoch",
    "batch_in_epoch",
    "tag",
    "reason",
    "loss",
    "global_loss",
    "scale",
    "samples",
    "digests",
    "checkpoint",
)
# Field of a `state` record → what stands before its names among the noise.
_NOISY = {"digests": "", **{field: f"{field}." for field in ("averages", "generators", "modes", "attributes")}}
# Nothing is done to an uninterrupted run, so a slow one says only that the machine is busy: it is waited for three times as long
# as for an attempt, where that is not longer than this.
_PATIENCE, _PATIENT_S = 3, 270.0
_NOT_IN_THE_NUMBERS = ("format", "on_save_error", "reshard", "collective_timeout_s", "workers")


# What a plain job does without.
_NOT_PLAIN = ("defects", "accumulate", "recompute", "activation_limit")


def golden_scenario(scenario: Scenario, launch: Launch = "cold") -> Scenario:
    """The uninterrupted job: the ranks of the first attempt, only the faults that belong to the data.

    Args:
        scenario: whose.
        launch: how a job that is watched from inside is started; as it stands, unless other ways are known to give the same.

    The healthy reference trainer's numbers must not depend on how it is launched, in which format it saves, or what it does
    when a save fails. Its golden run therefore has one form for all of these, so that fewer are needed, and a case that
    differs in any of them shows that they really do not matter: saving in another format must not change training either.
    """
    numeric = tuple(map(str, make_plan(scenario).numeric))
    changes: dict[str, object] = {
        "name": "golden",
        "faults": numeric,
        "world_sizes": scenario.world_sizes[:1],
        "expect": "resumes",
        "max_attempts": 1,
        "deadline_s": max(scenario.deadline_s, min(_PATIENCE * scenario.deadline_s, _PATIENT_S)),
    }
    workload = scenario.workload
    if isinstance(workload, Command) and workload.probe:
        changes["launch"] = launch
    if isinstance(workload, Command) and scenario.compare_with == "control":
        changes |= {"workload": workload.model_copy(update={"command": workload.control_command}), "compare_with": "same"}
    if isinstance(workload, Reference):
        changes["launch"] = "warm"
        if scenario.compare_with == "unsaved":
            # As many batches as there are do not complete another interval.
            workload = workload.model_copy(update={"save_every": workload.steps + 1})
            changes |= {"workload": workload, "compare_with": "same"}
        if scenario.compare_with == "plain":
            workload = workload.model_copy(update={name: Reference.model_fields[name].default for name in _NOT_PLAIN})
            changes |= {"workload": workload, "compare_with": "same"}
        if not workload.defects:
            plain = {name: Reference.model_fields[name].default for name in _NOT_IN_THE_NUMBERS}
            changes["workload"] = workload.model_copy(update=plain)
    return scenario.model_copy(update=changes)


def cache_key(scenario: Scenario, launch: Launch = "cold") -> str:
    """Equal for two scenarios exactly if their golden runs must give the same numbers."""
    facts = {
        "scenario": golden_scenario(scenario, launch).model_dump(mode="json", exclude={"name", "tolerance", "deadline_s"}),
        "versions": versions(),
        "source": _source_digest(),
        "command": _files_of(scenario.workload) if isinstance(scenario.workload, Command) else None,
        "machine": [platform.machine(), _processor(), platform.release()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


Again = Callable[[Path], tuple[Scenario, Launcher]]


def obtain(
    scenario: Scenario, cache: Path, launcher: Launcher, again: Again | None = None, launch: Launch = "cold"
) -> tuple[Baseline, Path]:
    """The baseline of a scenario, from the cache or by running it twice.

    Args:
        scenario: whose uninterrupted run is wanted.
        cache: directory of all baselines; made if it is missing.
        launcher: how the ranks are started.
        again: given the first run's logs, another way to start the second one. Where that cannot be started, or its numbers are
            others, the second is started like the first, and the baseline says why.
        launch: as of `golden_scenario`; the launcher is the one for it.

    Returns:
        The baseline and the directory that it is stored in.

    Raises:
        LaunchError, CapabilityError: it could not be run.
    """
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / cache_key(scenario, launch)
    with FileLock(cache / f"{target.name}.lock", timeout=_LOCK_S):
        if not (target / "baseline.json").is_file():
            shutil.rmtree(target, ignore_errors=True)
            _make(golden_scenario(scenario, launch), target, launcher, again)
    return read_baseline(target), target


def flipped(scenario: Scenario, cache: Path, launcher: Launcher, after: int) -> Path:
    """The logs of the uninterrupted run in which the last bit of every weight is flipped once, from the cache or by running it.

    Args:
        scenario: whose uninterrupted run is meant; its baseline is in the cache.
        cache: directory of all baselines.
        launcher: how the ranks are started.
        after: batches done when it is flipped.

    Raises:
        UsageError, LaunchError, CapabilityError: it could not be run.
    """
    golden = cache / cache_key(scenario)
    target = flipped_folder(golden, after)
    with FileLock(cache / f"{golden.name}.lock", timeout=_LOCK_S):
        if not target.is_dir():
            work = Path(tempfile.mkdtemp(prefix=f"{golden.name}-", dir=cache))
            try:
                _run_once(replace(make_plan(golden_scenario(scenario)), flip_after=after), work / "flipped", launcher)
                shutil.copytree(work / "flipped" / "attempt-000", work / "logs", ignore=shutil.ignore_patterns("rendezvous*"))
                (work / "logs").rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target


def _make(scenario: Scenario, target: Path, launcher: Launcher, again: Again | None) -> None:
    plan = make_plan(scenario)
    # Beside the target, on the same file system, so that the finished baseline appears in one rename.
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        first = _run_once(plan, work / "first", launcher)
        facts: dict[str, object] = {"world_size": scenario.world_size(0), "other_launch": "" if again else "it was not tried"}
        other = _run_otherwise(scenario, first, work, again) if again else ""
        if isinstance(other, str):
            facts["other_launch"] = other
            other = _compare(scenario, first, _run_once(plan, work / "second", launcher))
        golden = work / "golden"
        shutil.copytree(work / "first" / "attempt-000", golden)
        logs = {name: entry for name, entry in seal_of(golden).items() if name != "operations.jsonl"}
        (golden / "baseline.json").write_text(json.dumps(facts | other | {"sealed": logs}))
        golden.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_otherwise(scenario: Scenario, first: dict[int, RankLog], work: Path, again: Again) -> dict[str, object] | str:
    """What the comparison with a run that was started otherwise says; in words, why it cannot be used."""
    try:
        changed, launcher = again(work / "first" / "attempt-000")
        second = _run_once(make_plan(changed), work / "otherwise", launcher)
    except (LaunchError, UsageError) as error:
        return str(error)
    found = _compare(scenario, first, second)
    return str(found["unstable"]) or found


def _compare(scenario: Scenario, first: dict[int, RankLog], second: dict[int, RankLog]) -> dict[str, object]:
    # A generator that a foreign trainer has not seeded is another one in every run, and nothing follows from it.
    probed = isinstance(scenario.workload, Command) and scenario.workload.probe
    noise = noisy_components(first, second) if probed else frozenset()
    return {"unstable": first_difference(first, second, noise), "noise": sorted(noise)}


def _run_once(plan: Plan, path: Path, launcher: Launcher) -> dict[int, RankLog]:
    directory = RunDirectory.create(path, plan)
    run_attempts(plan, directory, launcher)
    attempt = directory.attempt(0)
    logs = read_rank_logs(attempt)
    workload = plan.scenario.workload
    watched = isinstance(workload, Command) and (workload.probe or workload.loss_log)
    idle = watched and not any(log.batches for log in logs.values())
    if not logs or idle or not all(log.ended for log in logs.values()):
        why = _why_not(attempt, logs, plan)
        # A foreign command that does not do its work undisturbed is the user's to mend; our own trainer is ours.
        raise UsageError([why]) if isinstance(plan.scenario.workload, Command) else LaunchError(why)
    if why := not_rising(workload, logs) or other_number(workload, logs):
        raise UsageError([why])
    return logs


def other_number(workload: Reference | Command, logs: dict[int, RankLog]) -> str:
    """Why a command's number of batches is not the one that was said, or "": each attempt would be taken for one that gave up."""
    said = workload.steps if isinstance(workload, Command) else None
    done = {end.get("batches") for log in logs.values() for end in log.of("end")}
    if said is None or not done or done == {said}:
        return ""
    found = " or ".join(sorted(map(str, done)))
    counted = "lines with a loss" if isinstance(workload, Command) and workload.loss_log else "batches"
    return (
        f"steps={said} was said, the uninterrupted run ended after {found} {counted}; expected the number that it does "
        f"(steps={found}), no number, or a command that goes on to {said}"
    )


def not_rising(workload: Reference | Command, logs: dict[int, RankLog]) -> str:
    """Why the lines of a trainer's own log do not name its steps, or ""."""
    if not isinstance(workload, Command) or not workload.loss_log:
        return ""
    steps = [batch.step for batch in next(iter(logs.values())).batches]
    again = next(((one, other) for one, other in itertools.pairwise(steps) if one >= other), None)
    if again is None:
        return ""
    return (
        f"the lines that --loss-regex {workload.loss_regex!r} finds do not count upwards: after step {again[0]} comes step "
        f"{again[1]}, so a step cannot be told from another. Expected one line per step: where several ranks speak, a "
        "--loss-regex that finds the lines of one of them; where steps are counted within epochs, the epoch before the step on "
        "the same line, as a group (?P<epoch>…)"
    )


def _why_not(attempt: Path, logs: dict[int, RankLog], plan: Plan) -> str:
    """What became of a run that did not do its work undisturbed: how it ended, what it last said, and what to do."""
    records, _ = read_records(attempt / "attempt.jsonl")
    exits = [record for record in records if record["event"] == "exited"]
    hung = any(record.get("kind") == "hang" for record in exits)
    failed = next((record for record in exits if record.get("code") != 0), None)
    if hung:
        ending = f"it was still running after {plan.scenario.deadline_s:g} s, which is as long as it may take"
    elif failed is not None:
        ending = f"it ended with {failed.get('signal') or 'exit code ' + str(failed.get('code'))}"
    elif not any(log.batches for log in logs.values()):
        return f"{_no_step(plan.scenario.workload)}; {_words(attempt)}"
    else:
        ending = f"{len(logs)} of {plan.attempts[0].world_size} ranks wrote an event log, not all of them to its end"
    start = "the uninterrupted run did not come to its end, so there is nothing to compare with"
    hint = "; expected a command that trains to its end and leaves with exit code 0" if failed is not None and not hung else ""
    words = _words(attempt)
    return f"{start}: {ending}{hint}{_of_memory(exits, plan.attempts[0].world_size, words) if not hung else ''}; {words}"


def _of_memory(exits: Sequence[Record], num_ranks: int, words: str) -> str:
    """A hint where a process was killed, or says itself that there was not enough memory; else nothing."""
    # A launcher says it of its own children; those that the harness has killed have another kind.
    killed = any((one.get("kind"), one.get("signal")) == ("foreign-death", "SIGKILL") for one in exits)
    killed = killed or re.search(r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\)", words) is not None
    if not killed and not re.search(r"(?i)MemoryError|bad_alloc|allocate memory|out of memory", words):
        return ""
    seen = "a process was killed by SIGKILL, and not by the harness" if killed else "there was not enough memory"
    held = max((int(record.get("max_memory_kib", 0)) for record in exits), default=0) / 1024
    memory = psutil.virtual_memory()
    return (
        f"; {seen}: {num_ranks} rank{'s' * (num_ranks > 1)}, of which the largest process that was seen held {held:.0f} MiB; the "
        f"machine has {memory.total / 2**30:.1f} GiB, of which {memory.available / 2**30:.1f} are free now. Pass fewer ranks "
        "(--world-size, where the command has {world_size}), a smaller model or smaller batches"
    )


def _no_step(workload: Reference | Command) -> str:
    if isinstance(workload, Command) and not workload.probe and not workload.loss_log:
        return _NO_LOG
    if isinstance(workload, Command) and workload.probe:
        option = keeps_out([fill(word, {"python": workload.python or sys.executable}) for word in workload.command])
        return _KEPT_OUT.format(option) if option else _NO_STEP
    if not isinstance(workload, Command) or not workload.loss_log:
        return _NO_STEP
    where = "to its standard output or error"
    if workload.loss_log != "-":
        missing = not Path(workload.directory or ".", workload.loss_log).exists()
        where = f"to {workload.loss_log}" + (" (there is no such file)" if missing else "")
    return (
        f"the command ended with exit code 0, but wrote no line {where} that --loss-regex {workload.loss_regex!r} finds, so "
        "there is nothing to compare; expected lines with a step and its loss, in the groups (?P<step>…) and (?P<loss>…)"
    )


_NO_LOG = (
    "the command ended with exit code 0, but wrote no event log, and nobody watched it, so there is nothing to compare; expected "
    "probe=True in its Command (a PyTorch trainer is then watched from inside), loss_log and loss_regex (its losses are read "
    "from what it prints), or a command that writes the event log by itself (docs/event-log.md)"
)
_NO_STEP = (
    "the command ended with exit code 0, but no training step of it was seen, so there is nothing to compare; expected Python "
    "processes that call backward() on a loss and step() of a torch.optim.Optimizer (python, torchrun, accelerate launch), or "
    "that write the event log by themselves (docs/event-log.md). Pass the command that trains, not one that only hands it on; "
    "Python's options -S, -E and -I keep out whoever watches"
)
_KEPT_OUT = (
    "the command ended with exit code 0, but no training step of it was seen: its interpreter is started with {}, which keeps "
    "out whoever watches it through PYTHONPATH. Expected the command without that option, or --loss-log FILE, which reads the "
    "losses from what the trainer says"
)


def _words(attempt: Path) -> str:
    """The last words of a run: from its errors, or else from what it printed."""
    for ending in ("stderr", "stdout"):
        files = sorted(attempt.glob(f"*.{ending}"))
        said = [line for file in files for line in file.read_text(errors="replace").strip().splitlines()[-8:]]
        if said:
            return "its last words:\n  " + "\n  ".join(said)
    return "it printed nothing"


def noisy_components(first: dict[int, RankLog], second: dict[int, RankLog]) -> frozenset[str]:
    """The components whose digests differ between two runs whose batches may be equal all the same."""
    found: set[str] = set()
    for rank in first.keys() & second.keys():
        for one, other in zip(first[rank].of("state"), second[rank].of("state"), strict=False):
            for field, start in _NOISY.items():
                a, b = one.get(field) or {}, other.get(field) or {}
                differ = {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
                # What is gone in one of them, as variables are at the end of a process of another kind, is compared by nobody.
                if field == "attributes":
                    differ -= {name for name in differ for values in (a, b) if values.get(name, "") is None}
                elif field != "digests":
                    differ &= a.keys() & b.keys()
                found |= {start + name for name in differ}
    return frozenset(found)


def first_difference(first: dict[int, RankLog], second: dict[int, RankLog], noise: frozenset[str] = frozenset()) -> str:
    """Where two runs that should be identical differ, but for noise, in words; empty if they do not."""
    if first.keys() != second.keys():
        return f"ranks {sorted(first)} in the first run, {sorted(second)} in the second"
    for rank in first:
        a, b = (_comparable(log, noise) for log in (first[rank], second[rank]))
        for one, other in zip(a, b, strict=False):
            if one != other:
                field = next(key for key in one if one[key] != other[key])
                where = f"rank {rank}, {one['event']} at step {one['step']}"
                return f"{where}: {field} is {_short(one[field])} in one run, {_short(other[field])} in the other"
        if len(a) != len(b):
            return f"rank {rank}: {len(a)} records in the first run, {len(b)} in the second"
    return ""


def _comparable(log: RankLog, noise: frozenset[str]) -> list[dict[str, object]]:
    # When a save that is written in the background is done is a matter of the disk: its report stands anywhere among the batches.
    # The beginning, too, where another thread begins it, and when the trainer learns of it, and says which checkpoint counts now.
    chance = ("background", "pointer")
    said = [r for r in log.records if r["event"] not in ("start", "memory") and not any(r.get(word) for word in chance)]
    said.sort(key=lambda record: (record["event"], record.get("moment")) == ("save", "end"))
    plain = [{key: record.get(key) for key in ("event", *_COMPARED)} for record in said]
    for record, one in zip(plain, said, strict=True):
        if (one["event"], one.get("moment")) == ("save", "begin"):
            record["checkpoint"] = None  # a temporary name may be drawn anew; the end of the save has the one that counts
        if noise and isinstance(record["digests"], dict):
            record["digests"] = {name: digest for name, digest in record["digests"].items() if name not in noise}
    return plain


def _short(value: object) -> str:
    number = parse_float(value)
    return f"{value} ({number:.6g})" if isinstance(value, str) and number == number else repr(value)[:120]


_MOST_FILES = 5000
_NOT_OWN = ("site-packages", "node_modules", "__pycache__")


def _files_of(workload: Command) -> list[tuple[str, int, int]]:
    """The files that a command names, and the Python files beside them, by size and time of the last change."""
    base = Path(workload.directory or ".")
    named = [base / word for word in (*workload.command, *(workload.resume_command or ())) if "{" not in word]
    files = {path for path in named if path.is_file() and path.stat().st_size < 1 << 24}
    for script in [path for path in files if path.suffix == ".py"]:
        files |= set(itertools.islice(_python_files(script.resolve().parent), _MOST_FILES))
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def _python_files(folder: Path) -> Iterator[Path]:
    """Those that a script there may import as its own: not installed ones, hidden ones, or what runs have left behind."""
    for where, below, names in os.walk(folder):
        if "plan.toml" in names:  # a run directory, in which a trainer may have saved its code
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _NOT_OWN)
        yield from (path for name in sorted(names) if name.endswith(".py") and (path := Path(where, name)).is_file())


@cache  # the warm server has loaded these files once as well; an edit during a session must not split the two
def _source_digest() -> str:
    digest = hashlib.sha256()
    for folder in ("reference", "probe"):
        for path in sorted((Path(__file__).parent / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    # The processor decides which kernels torch picks, and so the last bits.
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    kept = [line for line in cpuinfo.read_text().splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return hashlib.sha256("\n".join(sorted(set(kept))).encode()).hexdigest() + f" x{os.cpu_count()}"
