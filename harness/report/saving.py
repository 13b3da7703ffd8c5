"""What `harness report` does with stored results: read, put together, remembered, packed.

Responsible for: the order of these, and what is wrong with what was asked for. Not responsible for: how each works.
"""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.report.document import RESULT_FILE, Document, now, to_text
from harness.report.history import HISTORY_FILE, Night, add_night, in_order, line_of, night_of, read_history
from harness.report.junit import junit, read_suites
from harness.report.merge import combine
from harness.report.merge import merge as merge_documents
from harness.report.pack import DEFAULT_LIMIT, LEFT_OUT_FILE, Packed, copy, items_of, left_out_text, pack, parse_size
from harness.report.stored import Stored, StoredRun, read_stored, relocated, skipped_folder
from harness.report.summary import markdown

JUNIT_FILE, SUMMARY_FILE, CORPUS = "junit.xml", "summary.md", "corpus"


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        folders: run directories, folders, documents.
        history: the file of nights.
        merge: whether they are the shares of several machines; `out` is where they go then.
        pack: the archive to write.
        limit_bytes: of it, or of the run directories that a merge copies.
        num_runs: how many runs a page shows in full.
        problems: what is wrong with all this.
    """

    folders: tuple[Path, ...]
    history: Path | None
    merge: bool
    out: Path | None
    pack: Path | None
    limit_bytes: int
    num_runs: int
    problems: tuple[str, ...]

    @classmethod
    def parse(
        cls,
        folders: Sequence[Path],
        *,
        history: Path | None,
        merge: bool,
        out: Path | None,
        pack: Path | None,
        limit: str | None,
        runs: str,
    ) -> Wanted:
        """From the words of the command line; what is wrong stands in `problems`."""
        problems, limit_bytes = [], 0
        if not folders:
            problems.append("nothing to report on; expected run directories or folders, such as: harness report runs")
        problems += [
            f"{path} does not exist; expected a run directory, a folder or a result" for path in folders if not path.exists()
        ]
        if merge and out is None:
            problems.append("--merge needs --out DIR, a new folder for what is put together")
        if out is not None and not merge:
            problems.append("--out is for --merge; expected --html, --json, --junit, --summary or --pack FILE")
        if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
            problems.append(f"--out {out}: expected a new or empty folder, so that nothing of another merge stays in it")
        if limit is not None and not (merge or pack):
            problems.append("--artifact-limit is for --pack or --merge")
        try:
            limit_bytes = parse_size(DEFAULT_LIMIT if limit is None else limit)
        except UsageError as error:
            problems += error.problems
        if not runs.isdecimal() or len(runs) > 6:
            problems.append(f"--runs {runs}: expected how many runs the page shows in full, from 0")
        num_runs = 0 if problems else int(runs)
        return cls(tuple(folders), history, merge, out, pack, limit_bytes, num_runs, tuple(problems))


@dataclass(frozen=True)
class Reported:
    """What came of it: the document, the nights up to this one, and what is to be said beside."""

    document: Document
    nights: tuple[Night, ...]
    said: tuple[str, ...]


def save_all(wanted: Wanted) -> Reported:
    """Reads, merges, remembers and packs what is asked for. Raises: UsageError."""
    stored = read_stored(wanted.folders)
    if wanted.merge:
        merge_documents(stored.documents)  # refuses what is there twice, before anything is written
    document, older = combine(stored)
    nights = [night_of(one) for one in older]
    said: list[str] = []
    own = night_of(document if document.began else document.model_copy(update={"began": now()}))
    files = [wanted.history] if wanted.history else []
    files += [file for file in _named(wanted.folders, HISTORY_FILE) if file not in files]
    for file in files:
        read, problems = read_history(file)
        nights += read
        said += problems
    if wanted.history:
        add_night(wanted.history, own, nights)
    if wanted.merge and wanted.out:
        said += _write_merged(wanted, wanted.out, stored, document, in_order([*nights, own]))
    if wanted.pack:
        packed = pack(items_of(list(_names(wanted.folders, stored.runs)), _documents(stored)), wanted.pack, wanted.limit_bytes)
        said += _packed(packed, wanted.limit_bytes, f"{wanted.pack} ({LEFT_OUT_FILE} in it says more)")
    return Reported(document, tuple(in_order([*nights, own])), tuple(said))


def _packed(packed: Packed, limit_bytes: int, where: str) -> list[str]:
    first = left_out_text(packed, limit_bytes).splitlines()[0]
    return [f"packed into {where}: {first}"]


def _documents(stored: Stored) -> list[Path]:
    """Of several of one name the first: an archive has one place for a name."""
    return list({one.path.name: one.path for one in reversed(stored.documents)}.values())


def _names(folders: Sequence[Path], runs: Sequence[StoredRun]) -> Iterator[tuple[StoredRun, str]]:
    """Each run with its place in an archive: below the name of the folder that was given, numbered where that is taken."""
    taken: dict[str, Path] = {}
    for run in runs:
        real = run.path.resolve()
        root = next((folder.resolve() for folder in folders if real.is_relative_to(folder.resolve())), real)
        name = root.name if real == root else f"{root.name}/{real.relative_to(root).as_posix()}"
        number = 1
        while taken.setdefault(name if number == 1 else f"{name}.{number}", real) != real:
            number += 1
        yield run, f"runs/{name}" if number == 1 else f"runs/{name}.{number}"


def _named(folders: Sequence[Path], name: str) -> list[Path]:
    """Files of that name in the folders and right below them."""
    found = [
        path
        for folder in folders
        if folder.is_dir()
        for path in (folder / name, *sorted(folder.glob(f"*/{name}")), *sorted(folder.glob(f"*/{CORPUS}/{name}")))
    ]
    return [path for path in found if path.is_file()]


def _write_merged(wanted: Wanted, out: Path, stored: Stored, document: Document, nights: Sequence[Night]) -> list[str]:
    suites: list[ET.Element] = []
    said: list[str] = []
    for file in _xml_files(wanted.folders):
        try:
            suites += [suite for suite in read_suites(file) if not _is_ours(file, stored)]
        except UsageError as error:
            said += error.problems
    names = list(_names(wanted.folders, stored.runs))
    try:
        out.mkdir(parents=True, exist_ok=True)
        document = relocated(document, {str(run.path / "plan.toml"): str(out / name / "plan.toml") for run, name in names})
        (out / RESULT_FILE).write_text(to_text(document), encoding="utf-8", errors="backslashreplace")
        (out / JUNIT_FILE).write_text(junit(document, suites), encoding="utf-8", errors="backslashreplace")
        (out / SUMMARY_FILE).write_text(markdown(document), encoding="utf-8", errors="backslashreplace")
        (out / HISTORY_FILE).write_text("".join(map(line_of, nights)), encoding="utf-8")
        said += _merge_corpora(wanted.folders, out / CORPUS)
    except OSError as error:
        raise UsageError([f"cannot write below {out}: {error.strerror}"]) from None
    packed = copy(items_of(names), out, wanted.limit_bytes)
    return [*said, *_packed(packed, wanted.limit_bytes, f"{out} ({out / LEFT_OUT_FILE} says more)")]


def _xml_files(folders: Sequence[Path]) -> list[Path]:
    return [
        file
        for folder in folders
        if folder.is_dir()
        for file in sorted(folder.rglob("*.xml"))
        if not skipped_folder(file, folder)
    ]


def _is_ours(file: Path, stored: Stored) -> bool:
    """Whether a document beside it has the same cases: then they stand in the merged document already."""
    return any(one.path.parent == file.parent for one in stored.documents)


def _add_lines(source: Path, target: Path) -> None:
    """Logs that began as one and went on apart: each line once."""
    lines = source.read_bytes().splitlines()
    known = target.read_bytes().splitlines() if target.exists() else []
    target.write_bytes(b"".join(line + b"\n" for line in dict.fromkeys([*known, *lines])))


def _merge_corpora(folders: Sequence[Path], target: Path) -> list[str]:
    """The files of all folders named corpus, each content once; another content of a taken name is numbered, logs are joined."""
    said = []
    for corpus in (found for folder in folders if folder.is_dir() for found in sorted({folder, *folder.rglob(CORPUS)})):
        if corpus.name != CORPUS or not corpus.is_dir():
            continue
        for file in sorted(path for path in corpus.rglob("*") if path.is_file()):
            place = target / file.relative_to(corpus)
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".jsonl":
                _add_lines(file, place)
                continue
            number, free = 2, place
            while free.exists() and free.read_bytes() != file.read_bytes():
                free, number = place.with_name(f"{place.stem}.{number}{place.suffix}"), number + 1
            if free != place:
                said.append(f"{file} is another than the {place.name} of an earlier share; kept as {free.name}")
            if not free.exists():
                shutil.copyfile(file, free)
    return said
