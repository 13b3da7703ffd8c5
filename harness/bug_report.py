"""A failed run as a folder that can be given away: the replay file, what was found, the shortest log that shows it, an issue.

Responsible for: which records show it, a replay file that runs elsewhere, and that nothing in the folder says whose machine it
comes from (`harness.redaction`). Not responsible for: what was found (`harness.judge`).

Layout::

    issue.md        the text of an issue, ready to be pasted
    replay.toml     harness replay replay.toml
    verdict.json    the verdict, with all findings and, where there is one, the diagnosis
    versions.json   what it was seen with
    log/golden/rank-0.jsonl, log/attempt-000/rank-0.jsonl, attempt.jsonl, operations.jsonl, stderr
    train.py        the trainer's script, where it was asked for
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.case import judge_again
from harness.errors import UsageError
from harness.launch.understood import understand
from harness.oracle.verdict import Verdict
from harness.plan import Expected, Plan, replay_line, versions, write_plan
from harness.redaction import Redactor, known_names, known_places, names_in
from harness.scenario import Command
from harness.store import AttemptRun, Baseline, Batch, RankLog, Record, Run, read_baseline, read_run

MAX_SCRIPT_BYTES = 64 * 1024
TRAINER = "TRAINER"  # the folder that a person puts the trainer into
_ALWAYS = ("start", "resume", "refuse", "failed", "probe-failed")
_OF_ATTEMPT = ("launched", "fired", "killed", "exited", "damaged", "ended", "executed", "released", "power")
_OPERATIONS = 12
_REPLACED = re.compile(r"PATH-\d|(?<![A-Z])(?:HOME|HERE|TMP|PYTHON|RUN|USER|HOST|MAIL|ADDRESS)(?![A-Z])")
_LINES_OF_STDERR = 30


@dataclass(frozen=True)
class Report:
    """What is written.

    Attributes:
        verdict: of the run, judged again.
        plan: the replay file as it is given away.
        files: path in the folder → text.
        notes: what a person must do or know before it is sent, a sentence each.
        facts: the versions.
        losses: batch, uninterrupted and resumed loss around the first divergence, as numbers.
        diagnosis: the cause, as the run directory has it; None where it has none.
        redact: what has replaced paths and names.
    """

    verdict: Verdict
    plan: Plan
    files: dict[str, str]
    notes: tuple[str, ...]
    facts: dict[str, Any]
    losses: tuple[tuple[int, float, float], ...]
    diagnosis: Any
    redact: Redactor


@dataclass(frozen=True)
class _Case:
    """A failed run, and what the parts of a report are made from."""

    run: Run
    baseline: Baseline
    verdict: Verdict
    redact: Redactor

    @property
    def expected(self) -> Expected:
        return self.run.plan.expected or Expected(self.verdict.kind or "", self.verdict.component)


def read_failed(path: Path) -> tuple[Run, Baseline, Verdict]:
    """A run directory in which something is to be reported.

    Raises:
        UsageError: it is none, it is not complete, it passed, or nothing can be said of it.
    """
    if not path.is_dir():
        raise UsageError([f"{path} is no run directory; expected one that a run has written, such as runs/CASE"])
    run = read_run(path)
    missing = "no attempt was launched" if not run.attempts else ""
    try:
        baseline = read_baseline(run.directory.golden)
    except UsageError as error:
        missing = missing or str(error)
    if run.attempts and not run.attempts[-1].of("ended"):
        missing = missing or "its last attempt has no end"
    if missing:
        raise UsageError([f"{path} is not complete: {missing}; run the case again: {replay_line(path / 'plan.toml')}"])
    verdict = judge_again(path)
    if verdict.outcome == "PASS":
        raise UsageError([f"{path} has passed, so there is nothing to report; expected the run directory of a failure"])
    if verdict.outcome == "INCONCLUSIVE":
        why = verdict.root.message if verdict.root else ""
        raise UsageError(
            [f"{path} is INCONCLUSIVE ({verdict.kind}: {why}), which says nothing of the trainer; expected a failure"]
        )
    return run, baseline, verdict


def make_report(path: Path, with_script: bool) -> Report:
    """Puts a report together; nothing is written.

    Args:
        path: the run directory.
        with_script: whether the trainer's script is given away as well.

    Raises:
        UsageError: there is nothing to report, or the script cannot be given away; all problems at once.
    """
    run, baseline, verdict = read_failed(path)
    script = script_of(run.plan)
    if with_script and (problems := _no_single_file(run.plan, script)):
        raise UsageError(problems)
    places = known_places()
    for known, word in ((script.parent if script else None, TRAINER), (_directory(run.plan), TRAINER), (path.resolve(), "RUN")):
        places |= {str(known): word} if known else {}
    case = _Case(run, baseline, verdict, Redactor(places, known_names() | names_in(places)))
    plan, notes = portable(run.plan, script, with_script, case.redact, case.expected)
    files = {
        "verdict.json": _json(case.redact.data(_verdict_json(path, verdict))),
        "versions.json": _json(case.redact.data(facts(case))),
        **log_files(case),
    }
    if with_script and script is not None:
        text = script.read_text(encoding="utf-8")
        files[script.name] = case.redact.text(text)
        if files[script.name] != text:
            notes.append(f"paths or names in {script.name} were replaced; see that it still runs")
    diagnosis = case.redact.data(stored_diagnosis(path))
    return Report(verdict, plan, files, tuple(notes), case.redact.data(facts(case)), tuple(_losses(case)), diagnosis, case.redact)


def write_report(report: Report, folder: Path, issue: str) -> None:
    """Writes the folder; `issue` is the text of `issue.md`.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {**report.files, "issue.md": report.redact.text(issue)}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        write_plan(report.plan, folder / "replay.toml")
    except OSError as error:
        raise UsageError([f"cannot write to {folder}: {error.strerror}; expected a new folder (--out)"]) from None


# --- the replay file


def script_of(plan: Plan) -> Path | None:
    """The trainer's script, where the command says which it is."""
    workload = plan.scenario.workload
    if not isinstance(workload, Command):
        return None
    program = understand(["python" if word == "{python}" else word for word in workload.command])
    if program is None or program.words[0] == "-m" or "{" in program.words[0]:
        return None
    script = Path(program.words[0])
    return Path(workload.directory) / script if workload.directory else (script if script.is_absolute() else None)


def _directory(plan: Plan) -> str | None:
    return plan.scenario.workload.directory if isinstance(plan.scenario.workload, Command) else None


def _no_single_file(plan: Plan, script: Path | None) -> list[str]:
    if not isinstance(plan.scenario.workload, Command):
        return ["--with-script: the run is of the reference trainer, which everybody has; expected no --with-script"]
    if script is None or not script.is_file():
        told = f"{script} does not exist" if script else "the command does not say which file it is"
        return [f"--with-script: there is no script to copy, {told}; expected `python SCRIPT` or `torchrun SCRIPT`"]
    size = script.stat().st_size
    if size > MAX_SCRIPT_BYTES:
        return [
            f"--with-script: {script} has {size} bytes; expected at most {MAX_SCRIPT_BYTES}: cut it down to what shows the bug"
        ]
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        return [f"--with-script: {script} is no Python source ({error}); expected a script that can be read"]
    beside = sorted(name for name in _imported(tree) if _stands_beside(script, name))
    return [f"--with-script: {script} imports {', '.join(beside)} from beside it; expected a single file"] if beside else []


def _imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names - {""}


def _stands_beside(script: Path, name: str) -> bool:
    return (script.parent / f"{name}.py").is_file() or (script.parent / name / "__init__.py").is_file()


def portable(plan: Plan, script: Path | None, copied: bool, redact: Redactor, expected: Expected) -> tuple[Plan, list[str]]:
    """The plan without paths of this machine, and what is to be done before it can be run elsewhere."""
    scenario, workload = plan.scenario, plan.scenario.workload
    if not isinstance(workload, Command):
        named = scenario.model_copy(update={"name": redact.text(scenario.name)})
        return dataclasses.replace(plan, scenario=named, expected=expected), []
    base = Path(workload.directory) if workload.directory else (script.parent if script else None)

    def word(text: str, first: bool) -> str:
        if copied and script is not None and base is not None and base / text == script:
            return script.name
        if first and Path(text).name.startswith("python") and understand([text, "x.py"]) is not None:
            return "{python}"
        if first and Path(text).name == "torchrun":
            return "torchrun"
        if base is not None and Path(text).is_absolute() and Path(text).is_relative_to(base):
            return str(Path(text).relative_to(base))
        return redact.text(text)

    def words(given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if given is None else tuple(word(text, first=n == 0) for n, text in enumerate(given))

    changes = {
        "command": words(workload.command),
        "resume_command": words(workload.resume_command),
        "control_command": words(workload.control_command),
        "directory": None if base is None else "." if copied else TRAINER,
        "python": None,
        "resume_python": None,
        "loss_log": redact.text(workload.loss_log) if workload.loss_log else None,
    }
    moved = workload.model_copy(update=changes)
    notes = []
    if base is not None and not copied:
        notes.append(f"put the trainer into the folder {TRAINER} beside replay.toml, or change `directory` in it")
    if workload.python:
        notes.append("the trainer ran under an interpreter of its own; `python` in replay.toml can name one")
    if workload.resume_python:
        notes.append("restarts ran under another interpreter; `resume_python` in replay.toml can name one")
    said = [*moved.command, *(moved.resume_command or ()), *(moved.control_command or ())]
    if replaced := sorted({text for text in said if _REPLACED.search(text)}):
        notes.append(f"paths or names in the command were replaced ({', '.join(replaced)}): say what they stand for")
    named = scenario.model_copy(update={"workload": moved, "name": redact.text(scenario.name)})
    return dataclasses.replace(plan, scenario=named, expected=expected), notes


# --- what was found, and with what


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _verdict_json(path: Path, verdict: Verdict) -> dict[str, Any]:
    """The verdict with every finding; and the diagnosis that was stored with it, if any."""
    document = verdict.to_json() | {"replay": "replay.toml", "findings": [dataclasses.asdict(one) for one in verdict.findings]}
    if (diagnosis := stored_diagnosis(path)) is not None:
        document["diagnosis"] = diagnosis
    return document


def stored_diagnosis(path: Path) -> Any:
    """What `verdict.json` says of the cause; None where it says nothing."""
    try:
        stored = json.loads((path / "verdict.json").read_bytes())
    except (OSError, ValueError):
        return None
    return stored.get("diagnosis") if isinstance(stored, dict) else None


def facts(case: _Case) -> dict[str, Any]:
    """The versions that it was seen with."""
    trainer = next((start for log in case.baseline.ranks.values() for start in log.of("start")), {})
    told = {f"trainer_{key}": str(trainer[key]) for key in ("python", "torch") if trainer.get(key)}
    return {
        **case.run.plan.versions,
        **told,
        "harness_of_this_report": versions()["harness"],
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "c_library": " ".join(platform.libc_ver()).strip(),
        "filesystem": filesystem_of(case.run.directory.path),
        "interpreter": sys.implementation.name,
    }


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that a path lies on, "unknown" where the kernel does not say.

    Source: proc(5), /proc/pid/mountinfo.
    """
    best, found = -1, "unknown"
    target = os.path.realpath(path)
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two mounts on one place the later one is seen
            best, found = len(point), after.split()[0]
    return found


# --- the shortest log


def log_files(case: _Case) -> dict[str, str]:
    """The records around the first divergence, of the ranks that it concerns, of every launch and of the uninterrupted run."""
    steps, ranks = interesting(case)
    texts = {}
    for rank in ranks:
        if rank in case.baseline.ranks:
            texts[f"log/golden/rank-{rank}.jsonl"] = _lines(case, _around(case.baseline.ranks[rank], steps))
    root = case.verdict.root
    last = root.attempt if root and root.attempt is not None else case.run.attempts[-1].index
    for attempt in case.run.attempts[: last + 1]:
        folder = f"log/{attempt.path.name}"
        for rank in ranks:
            if rank in attempt.ranks:
                texts[f"{folder}/rank-{rank}.jsonl"] = _lines(case, _around(attempt.ranks[rank], steps))
        done = [record for record in attempt.supervisor if record["event"] in _OF_ATTEMPT]
        texts[f"{folder}/attempt.jsonl"] = _lines(case, done)
        texts[f"{folder}/operations.jsonl"] = _lines(case, _operations(attempt, ranks))
        if attempt.index == last:
            texts |= {
                f"{folder}/rank-{rank}.stderr": case.redact.text(said) for rank in ranks if (said := _stderr(attempt, rank))
            }
    return {name: text for name, text in texts.items() if text}


def interesting(case: _Case) -> tuple[set[int], list[int]]:
    """The steps at which something happened, and the ranks that it happened to."""
    root = case.verdict.root
    assert root is not None
    fired = case.verdict.fired
    steps = {step for step in (root.step, *(fault.step for fault in fired), *case.verdict.resumed_from) if step is not None}
    ranks = {rank for rank in (root.rank, *(fault.rank for fault in fired)) if rank is not None and rank >= 0}
    return steps, sorted(ranks) or [0]


def _around(log: RankLog, steps: set[int]) -> list[Record]:
    near = {step + offset for step in steps for offset in (0, 1)}
    kept = [
        record
        for record in log.records
        if record["event"] in _ALWAYS
        or record.get("step") in steps
        or (record["event"] == "batch" and record.get("batch") in near)
    ]
    return [*kept, *[record for record in log.records[-1:] if record not in kept]]


def _losses(case: _Case) -> list[tuple[int, float, float]]:
    """Of the attempt in which the losses part: each batch from the one before the first difference to the one behind it."""
    root = case.verdict.root
    if root is None or root.attempt is None or root.step is None or root.rank is None:
        return []
    attempt = next((one for one in case.run.attempts if one.index == root.attempt), None)
    golden = case.baseline.ranks.get(root.rank)
    log = attempt.ranks.get(root.rank) if attempt else None
    if golden is None or log is None:
        return []
    uninterrupted = {batch.batch: batch for batch in golden.batches}
    pairs = [(uninterrupted[one.batch], one) for one in log.batches if one.batch in uninterrupted]
    near = [(a, b) for a, b in pairs if root.step - 1 <= a.step <= root.step + 2]
    return [(a.batch, _loss(a), _loss(b)) for a, b in near]


def _loss(batch: Batch) -> float:
    return batch.loss if batch.global_loss is None else batch.global_loss


def _operations(attempt: AttemptRun, ranks: list[int]) -> list[Record]:
    done = [record for record in attempt.operations if record["event"] == "operation" and record.get("rank") in ranks]
    return done[-_OPERATIONS:]


def _stderr(attempt: AttemptRun, rank: int) -> str:
    lines = attempt.stderr(rank).splitlines()[-_LINES_OF_STDERR:]
    return "\n".join(lines) + "\n" if lines else ""


def _lines(case: _Case, records: list[Record]) -> str:
    return "".join(json.dumps(case.redact.data(record), ensure_ascii=False) + "\n" for record in records)
