"""Results as they lie on disk: documents (`harness.result/1`) and run directories, found below folders.

Responsible for: finding them, reading what can be read of them, and saying what cannot be and why; nothing is run, nothing is
written. A run directory without a readable verdict is judged from its logs (`harness.judge`), and one that is still being written
counts as INCONCLUSIVE, so that it cannot be overlooked.
Not responsible for: putting documents together (`harness.report.merge`), or showing them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import __version__
from harness.case import judge_again
from harness.errors import HarnessError, UsageError
from harness.oracle.verdict import Verdict
from harness.plan import Plan, read_plan, replay_line
from harness.report.checked import case_row
from harness.report.document import RESULT_FILE, CaseRow, Document, FoundRow, clean, parse_document
from harness.report.text import render
from harness.store import RunDirectory, read_records

_NOT_RUNS = {"golden", "checkpoints", "baselines", "__pycache__"}
_BEHIND = " (where it was found; it is not here)"
_RESULT_BYTES = 256 << 20  # a larger file is no document of ours


@dataclass(frozen=True)
class StoredRun:
    """A run directory.

    Attributes:
        path: where it lies.
        row: what came of the case.
        plan: what was to be done; None where it cannot be read.
        diagnosis: the cause in words, "" where none is stored.
        facts: the diagnosis as data, in lines of text.
        note: what a reader should know of the directory, "" where all is as it should be.
    """

    path: Path
    row: CaseRow
    plan: Plan | None
    diagnosis: str = ""
    facts: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class StoredDocument:
    """A document, and the file that it was read from."""

    path: Path
    document: Document


@dataclass(frozen=True)
class Stored:
    """All that was found below some folders; `notes` say what could not be read."""

    documents: tuple[StoredDocument, ...]
    runs: tuple[StoredRun, ...]
    notes: tuple[str, ...] = ()


def read_stored(paths: Sequence[Path]) -> Stored:
    """Reads everything below some folders.

    Args:
        paths: run directories, folders that hold any, or documents.

    Raises:
        UsageError: one of them does not exist or holds no results; all such problems at once.
    """
    problems, notes = [], []
    documents: dict[str, StoredDocument] = {}
    runs: dict[Path, StoredRun] = {}
    for given in paths:
        found, said = _documents(given), list[str]()
        for file in found:
            try:
                one = parse_document(_read(file), file)
            except UsageError as error:
                said += error.problems
            else:  # the same results may have been written twice: into the folder, and where the user wanted them
                key = one.model_dump_json()
                documents.setdefault(key, StoredDocument(file, one))
        here = {path.resolve(): path for path in _run_directories(given)}
        told = [file.parent.resolve() for file in found]
        for real, path in here.items():
            if real not in runs and (run := _stored_run(path, any(folder in real.parents for folder in told))):
                runs[real] = run
        if not here and (not found or given.is_file()):
            problems += said or [_nothing_in(given)]
        elif not here and len(said) == len(found):
            problems += said
        else:
            notes += said
    if problems:
        raise UsageError(problems)
    notes += [run.note for run in runs.values() if run.note]
    placed = tuple(_placed(one, list(runs.values())) for one in documents.values())
    return Stored(placed, tuple(runs.values()), tuple(dict.fromkeys(notes)))


def _placed(stored: StoredDocument, runs: Sequence[StoredRun]) -> StoredDocument:
    """The document with its replay files where they lie now: it may come from another machine, and name what is there no more."""
    folder = stored.path.resolve().parent
    places = [Places(run for run in runs if folder in run.path.resolve().parents), Places(runs)]
    found = {}
    named = {row.replay for row in stored.document.cases}
    named |= {replay for one in stored.document.findings for replay in (one.repeat, one.shown)}
    for replay in named:
        run = next((run for place in places if (run := place.of(replay)) is not None), None)
        if run is not None:
            found[replay] = str(run.path / "plan.toml")
    for one in stored.document.findings:
        if one.shown in found and not Path(one.repeat).is_file():  # what was made smaller has stayed behind; the run is here
            found.setdefault(one.repeat, found[one.shown])
    document = relocated(stored.document, found)
    findings = [one.model_copy(update={"lines": tuple(map(_left_behind, one.lines))}) for one in document.findings]
    return StoredDocument(stored.path, document.model_copy(update={"findings": tuple(findings)}))


def _left_behind(line: str) -> str:
    """A line that names a file, with a word where it is not here."""
    name, colon, file = line.partition(": ")
    if not colon or name not in ("test", "strace") or Path(file).is_file() or file.endswith(_BEHIND):
        return line
    return line + _BEHIND


def relocated(document: Document, places: Mapping[str, str]) -> Document:
    """The document with other paths of replay files: old → new."""

    def moved(text: str, old: str) -> str:
        if old not in places:
            return text
        pairs = ((replay_line(old), replay_line(places[old])), (old, places[old]))
        return text.replace(*next(pair for pair in pairs if pair[0] in text or pair == pairs[-1]))

    cases = tuple(
        one.model_copy(update={"replay": moved(one.replay, one.replay), "text": moved(one.text, one.replay)})
        for one in document.cases
    )
    findings = tuple(
        one.model_copy(update={name: moved(getattr(one, name), getattr(one, name)) for name in ("repeat", "shown")})
        for one in document.findings
    )
    return document.model_copy(update={"cases": cases, "findings": findings})


def stored_runs(folders: Sequence[Path]) -> tuple[StoredRun, ...]:
    """The run directories below folders that may hold none."""
    found = {path.resolve(): path for folder in folders for path in _run_directories(folder)}
    told = [folder.resolve() for folder in folders if (folder / RESULT_FILE).is_file()]
    runs = [_stored_run(path, any(folder in real.parents for folder in told)) for real, path in found.items()]
    return tuple(run for run in runs if run is not None)


def _nothing_in(path: Path) -> str:
    if not path.exists():
        return (
            f"{path} does not exist; expected a run directory, a folder with run directories, or a result that --json has written"
        )
    if path.is_file():
        return f"{path} is no result of the harness; expected what --json has written, or a folder"
    return f"{path} holds no run directory (with a plan.toml) and no result.json; passed cases are kept with --harness-keep all"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError([f"cannot read {file}: {error}"]) from None


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder that may hold results, with its files; a run directory is looked at as a whole, not into."""
    for here, names, files in os.walk(root):
        folder = Path(here)
        if "plan.toml" in files:
            names.clear()
        names[:] = sorted(name for name in names if name not in _NOT_RUNS and not name.startswith("."))
        yield folder, sorted(files)


def skipped_folder(file: Path, root: Path) -> bool:
    """Whether a file lies in a run directory, or where no results are looked for."""
    between = [folder for folder in file.parents if folder.is_relative_to(root)]
    return any(folder.name in _NOT_RUNS or (folder / "plan.toml").exists() for folder in between)


def _run_directories(root: Path) -> list[Path]:
    return [folder for folder, files in _folders(root) if _is_run(folder, files)]


def _is_run(folder: Path, files: Sequence[str]) -> bool:
    # A folder of replay files, such as a corpus, holds a plan but no run.
    return "plan.toml" in files or ("verdict.json" in files and (folder / "attempt-000").is_dir())


def _documents(root: Path) -> list[Path]:
    """The files that are documents of ours, of this version or another, or were meant to be."""
    if root.is_file():
        return [root]
    files = [folder / name for folder, names in _folders(root) if not _is_run(folder, names) for name in names]
    return [file for file in files if file.suffix == ".json" and _looks_like_one(file)]


def _looks_like_one(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > _RESULT_BYTES:
            return False
        with file.open("rb") as opened:
            return b"harness.result/" in opened.read(4096) or file.name == "result.json"
    except OSError:
        return False


def _stored_run(path: Path, told: bool) -> StoredRun | None:
    """What a run directory says.

    Args:
        path: of the directory.
        told: a document stands above it, which names everything that was judged.

    Returns:
        None for the recording of an undisturbed job, which is no case.
    """
    directory = RunDirectory(path)
    plan, why = _plan_of(path)
    if not directory.verdict_file.exists():
        if told or (plan is not None and not plan.scenario.faults and _ended(directory)):
            return None
        return _unjudged(path, plan, why)
    said, problem = _said_verdict(directory.verdict_file)
    row = problem if said is None else _row_of(said, path, plan)
    if isinstance(row, str):
        judged, cannot = _judge(path, plan)
        if judged is None:
            return StoredRun(path, _open_row(path, plan, f"{row}; {cannot}"), plan, note=row)
        return StoredRun(path, judged, plan, note=f"{row}; judged again from its logs")
    text, note = ("", "") if row.verdict == "PASS" else _text_of(row, path)
    diagnosis, facts = _diagnosis(said.get("diagnosis") if said else None)
    return StoredRun(path, row.model_copy(update={"text": text or row.text}), plan, diagnosis, facts, note or why)


def _plan_of(path: Path) -> tuple[Plan | None, str]:
    try:
        return read_plan(path / "plan.toml"), ""
    except UsageError as error:
        return None, error.problems[0]


def _ended(directory: RunDirectory) -> bool:
    attempts = list(directory.attempts())
    return bool(attempts) and any(r["event"] == "ended" for r in read_records(attempts[-1] / "attempt.jsonl")[0])


def _unjudged(path: Path, plan: Plan | None, why: str) -> StoredRun:
    if plan is None:
        return StoredRun(path, _open_row(path, plan, why), plan, note=why)
    if not _ended(RunDirectory(path)):
        text = (
            f"{path} has no verdict, and its last attempt has not ended: it is still being written, or the harness was ended in "
            f"the middle; `harness judge {path}` judges what is there"
        )
        return StoredRun(path, _open_row(path, plan, text), plan, note=text)
    row, problem = _judge(path, plan)
    if row is None:
        return StoredRun(path, _open_row(path, plan, problem), plan, note=problem)
    return StoredRun(path, row, plan, note=f"{path} has no verdict.json; judged from its logs")


def _said_verdict(file: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        data = json.loads(_read(file))
    except UsageError as error:
        return None, error.problems[0]
    except (ValueError, RecursionError) as error:
        return None, f"{file} is no JSON ({error}): it was cut short"
    if not isinstance(data, dict):
        return None, f"{file} is no verdict: found {type(data).__name__}, expected a table of facts"
    return data, ""


def _row_of(said: dict[str, Any], path: Path, plan: Plan | None) -> CaseRow | str:
    sizes = plan.scenario.world_sizes if plan else ()
    try:
        row = CaseRow.model_validate(clean({**said, "world_sizes": sizes, "replay": str(path / "plan.toml")}))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        by = (
            f", written by harness {plan.versions.get('harness')},"
            if plan and plan.versions.get("harness") != __version__
            else ""
        )
        return f"{path / 'verdict.json'}{by} is not what harness {__version__} writes ({place}: {first['msg']})"
    return row.model_copy(update={"part": row.part or path.parent.name})


def _text_of(row: CaseRow, path: Path) -> tuple[str, str]:
    """What a terminal would show, by judging again; and that this version judges otherwise, where it does."""
    try:
        verdict = judge_again(path)
    except HarnessError as error:
        head = f"{row.verdict} {row.kind}: {row.fault}"
        return head, f"{path}: only its verdict can be shown: {str(error).splitlines()[0]}"
    text = render(verdict, path)
    if (verdict.outcome, verdict.kind) == (row.verdict, row.kind):
        return text, ""
    said, now = f"{row.verdict} {row.kind}", f"{verdict.outcome} {verdict.kind or ''}".rstrip()
    note = f"{path}: its verdict.json says {said}, this version of the harness judges {now}"
    return f"{said}: as it was judged when it was run\n  now judged: {text}", note


def _judge(path: Path, plan: Plan | None) -> tuple[CaseRow | None, str]:
    try:
        verdict: Verdict = judge_again(path)
    except HarnessError as error:
        return None, f"{path} cannot be judged: {str(error).splitlines()[0]}"
    sizes = plan.scenario.world_sizes if plan else ()
    return case_row(verdict, path, world_sizes=sizes, part=path.parent.name), ""


def _open_row(path: Path, plan: Plan | None, why: str) -> CaseRow:
    facts = {
        "id": plan.scenario.name if plan else path.name,
        "fault": "; ".join(plan.scenario.faults) if plan else "none",
        "verdict": "INCONCLUSIVE",
        "kind": "not-comparable",
        "replay": str(path / "plan.toml"),
        "part": path.parent.name,
        "text": f"INCONCLUSIVE not-comparable: {why}",
        "world_sizes": plan.scenario.world_sizes if plan else (),
    }
    return CaseRow.model_validate(clean(facts))


def _diagnosis(said: Any) -> tuple[str, tuple[str, ...]]:
    """The paragraph of a stored diagnosis, and its facts, however the version that wrote it has laid them out."""
    if isinstance(said, str):
        return said, ()
    if not isinstance(said, dict):
        return "", ()
    name = next((key for key in ("paragraph", "text", "summary") if isinstance(said.get(key), str)), "")
    facts = [(key, value) for key, value in said.items() if key != name and value not in (None, "", [], {})]
    return (said[name] if name else ""), tuple(f"{key}: {_plainly(value)}" for key, value in facts)


def _plainly(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def with_diagnoses(document: Document, runs: Iterable[StoredRun]) -> Document:
    """The document with the diagnosis of each finding, where the run that shows it lies here."""
    where = Places(runs)
    found = []
    for one in document.findings:
        run = where.showing(one)
        lines = tuple(line for line in one.lines if not line.startswith("diagnosis: "))  # it would stand there twice
        found.append(one.model_copy(update={"diagnosis": run.diagnosis, "lines": lines}) if run and run.diagnosis else one)
    return document.model_copy(update={"findings": tuple(found)})


class Places:
    """Run directories by the replay files that a document names, which may have been written on another machine."""

    def __init__(self, runs: Iterable[StoredRun]) -> None:
        self._exact: dict[Path, StoredRun] = {}
        self._by_name: dict[str, list[StoredRun]] = {}
        for run in runs:
            real = run.path.resolve()
            self._exact[real] = run
            self._by_name.setdefault(real.name, []).append(run)

    def of(self, replay: str) -> StoredRun | None:
        """The run of a replay file: where it says, else the one whose path ends most like it, by two names at least."""
        folder = Path(replay).parent
        if not folder.name:
            return None
        folder = folder.absolute()
        if folder in self._exact:
            return self._exact[folder]
        alike = [(_common(run.path.resolve().parts, folder.parts), run) for run in self._by_name.get(folder.name, ())]
        best = max(alike, key=lambda pair: pair[0], default=(0, None))
        return best[1] if best[0] >= _ALIKE else None

    def showing(self, finding: FoundRow) -> StoredRun | None:
        """The run that shows a finding."""
        return self.of(finding.repeat) or self.of(finding.shown)


_ALIKE = 2


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many names two paths have in common, from their ends."""
    return next(
        (n for n, (a, b) in enumerate(zip(reversed(one), reversed(other), strict=False)) if a != b), min(len(one), len(other))
    )
