"""The results of several machines as those of one: documents put together. Pure.

Responsible for: which documents are shares of one work, whether they are all there, each exactly once, and what their parts,
causes and counts are together. Causes that several shares name in the same words are one.
Not responsible for: reading (`harness.report.stored`), or files (`harness.report.pack`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.check import worst
from harness.errors import UsageError
from harness.report.checked import grouped
from harness.report.document import CaseRow, Document, FoundRow, PartRow, summary_of
from harness.report.exploration import coverage_text, num
from harness.report.stored import Places, Stored, StoredDocument, with_diagnoses
from harness.shard import Shard

# What one machine may be told otherwise than another, and does the same work.
_OWN_OPTIONS: tuple[str, ...] = (
    "--shard",
    "--json",
    "--junit",
    "--summary",
    "--html",
    "--out",
    "--jobs",
    "--harness-json",
    "--harness-html",
)
_OWN_OPTIONS += ("--harness-runs", "--junitxml", "--junit-xml", "-n")
_OWN_OF_A_NIGHT = ("--seed", "--corpus")  # every night draws with another seed, and a corpus lies somewhere on each machine
_SUMMED = ("judged", "resumes", "left_out", "cases")


def combine(stored: Stored) -> tuple[Document, list[Document]]:
    """One document of all that was found, and the older ones of the same work.

    Of work that was done several times, as every night, the newest counts; the older ones are history.

    Raises:
        UsageError: what was found contradicts itself.
    """
    newest: dict[tuple[Any, ...], StoredDocument] = {}
    older: list[Document] = []
    for one in sorted(stored.documents, key=lambda one: (one.document.began, str(one.path))):
        before = newest.get(key := (_work(one.document), one.document.shard))
        older += [before.document] if before else []
        newest[key] = one
    found = _together([one.document for one in newest.values()])
    told = Places(stored.runs)
    shown = {id(run) for case in [c for one in stored.documents for c in one.document.cases] if (run := told.of(case.replay))}
    rest = [run.row for run in stored.runs if id(run) not in shown]
    document = _with_cases(found, rest) if rest or found is None else found
    notes = [*document.notes, *stored.notes]
    notes += [f"{num(len(older), 'older result')} of the same work: counted as history only"] if older else []
    document = document.model_copy(update={"notes": tuple(dict.fromkeys(notes))})
    return with_diagnoses(document, stored.runs), older


def merge(documents: Sequence[StoredDocument]) -> Document | None:
    """The shares of one piece of work, or of several, as one document; None where there is none.

    Raises:
        UsageError: a share is there twice.
    """
    seen: dict[tuple[Any, ...], Path] = {}
    problems = []
    for one in documents:
        key = (_work(one.document), one.document.shard)
        if one.document.shard and key in seen:
            files = f"{seen[key]} and {one.path}"
            problems.append(f"share {one.document.shard} of {_named(one.document)} is there twice: {files}; expected each once")
        seen.setdefault(key, one.path)
    if problems:
        raise UsageError(problems)
    return _together([one.document for one in documents])


def _work(document: Document) -> tuple[str, ...]:
    """The command line without what each machine is told for itself: what is equal is the same work."""
    words, kept = list(document.command), []
    own = (*_OWN_OPTIONS, *_OWN_OF_A_NIGHT) if "chaos" in words[:3] else _OWN_OPTIONS
    while words:
        word = words.pop(0)
        if word == "--":  # what follows is the user's command
            kept += [word, *words]
            break
        if word in own:
            words[:1] = []
        elif word.partition("=")[0] not in own:
            kept.append(word)
    return (*kept, document.shard.partition("/")[2])


def _named(document: Document) -> str:
    return f"`{' '.join(document.command[:4]) or 'a run'}`"


def _together(documents: Sequence[Document]) -> Document | None:
    works: dict[tuple[str, ...], list[Document]] = {}
    for document in documents:
        works.setdefault(_work(document), []).append(document)
    merged = [_shares(members) if members[0].shard else _beside(members) for members in works.values()]
    if len(merged) > 1:
        merged = [_apart(one, [other for other in merged if other is not one]) for one in merged]
    return _beside(merged) if merged else None


def _apart(document: Document, others: Sequence[Document]) -> Document:
    """What has the same name in other work, and would be added up with it, says to which work it belongs."""
    label = " ".join([*_work(document)[:-1]]).removeprefix("harness ")
    taken = {part.name for other in others for part in other.parts} | {
        row.get("part") for other in others for row in _rows(other)
    }
    causes = {one.key or (one.kind, one.component, one.text) for other in others for one in other.findings}

    def named(name: str) -> str:
        return f"{label}: {name}" if label and name in taken else name

    def found(one: FoundRow) -> FoundRow:
        key = one.key or (one.kind, one.component, one.text)
        return one.model_copy(update={"key": (*key, label), "lines": (f"work: {label}", *one.lines)}) if key in causes else one

    facts: dict[str, Any] = {
        "parts": tuple(part.model_copy(update={"name": named(part.name)}) for part in document.parts),
        "cases": tuple(case.model_copy(update={"part": named(case.part)}) for case in document.cases),
        "findings": tuple(map(found, document.findings)) if label else document.findings,
    }
    if isinstance(document.coverage, tuple):
        facts["coverage"] = tuple({**row, "part": named(str(row["part"]))} if "part" in row else row for row in document.coverage)
    return document.model_copy(update=facts)


def _shares(documents: list[Document]) -> Document:
    """All shares of one work."""
    documents = sorted(documents, key=lambda one: Shard.parse(one.shard).index)
    count = Shard.parse(documents[0].shard).count
    there = {Shard.parse(one.shard).index for one in documents}
    missing = [f"{index}/{count}" for index in range(1, count + 1) if index not in there]
    whole = _beside(documents)
    steps = {one.baseline.steps for one in documents}
    notes = list(whole.notes)
    notes += _disagreements(documents)
    if len(steps) > 1:
        notes.append(f"the shares trained for different numbers of steps ({', '.join(map(str, sorted(map(str, steps))))})")
    parts = [part for part in whole.parts if not part.missing]  # of an earlier merge, which had fewer
    if missing:
        text = f"{num(len(missing), 'share')} missing: {', '.join(missing)}; nothing is known of what they would have found"
        parts.append(PartRow(name=f"shares of {_named(whole)}", outcome="INCONCLUSIVE", text=text, missing=True))
    return whole.model_copy(update={"parts": tuple(parts), "notes": tuple(notes), "shard": "" if not missing else whole.shard})


def _disagreements(documents: Sequence[Document]) -> list[str]:
    """Where shares have seen different numbers of states, some may have been judged twice, or by nobody."""
    found: dict[str, set[int]] = {}
    for document in documents:
        for row in _rows(document):
            if isinstance(row.get("distinct"), int):
                found.setdefault(str(row.get("part")), set()).add(row["distinct"])
    return [
        f"{part}: the shares saw different numbers of distinct states ({', '.join(map(str, sorted(sizes)))}), so some may have "
        "been judged twice or by no share"
        for part, sizes in found.items()
        if len(sizes) > 1
    ]


def _beside(documents: Sequence[Document]) -> Document:
    """Documents as one: what has the same name is put together."""
    if len(documents) == 1:
        return documents[0]
    cases = _cases(documents)
    first = documents[0]
    coverage = _coverage(documents)
    took = [one.took_s for one in documents if one.took_s is not None]
    lists = {
        name: tuple(dict.fromkeys(text for one in documents for text in getattr(one, name)))
        for name in ("undecided", "left_out", "notes")
    }
    longest = max(took) if took else None
    same = all(one.command == first.command or _work(one) == _work(first) for one in documents)
    known = [one.baseline.deterministic for one in documents]
    facts = {
        **lists,
        "command": first.command if same else (),
        "seed": first.seed if len({one.seed for one in documents}) == 1 else None,
        "began": min((one.began for one in documents if one.began), default=""),
        "took_s": longest,  # they ran at the same time
        "recording_s": max((one.recording_s or 0.0 for one in documents), default=0.0),
        "shard": "",
        "baseline": first.baseline.model_copy(
            update={"deterministic": False if False in known else None if None in known else True}
        ),
        "summary": summary_of(cases, longest),
        "cases": cases,
        "parts": _parts(documents, cases, coverage),
        "coverage": coverage,
        "findings": _findings(documents),
        "causes": tuple(cause for one in documents for cause in one.causes),
        "unfelt": tuple({str(row.get("name")): row for one in reversed(documents) for row in reversed(one.unfelt)}.values()),
    }
    return first.model_copy(update=facts)


def _cases(documents: Sequence[Document]) -> tuple[CaseRow, ...]:
    """All cases; one that several shares have run, since all that follows is planned by it, counts once if they agree."""
    found: dict[tuple[Any, ...], CaseRow] = {}
    for number, document in enumerate(documents):
        for place, case in enumerate(document.cases):
            own = (
                (case.part, case.title, case.fault, case.verdict, case.kind) if document.shard and case.title else (number, place)
            )
            found.setdefault(own, case)
    return tuple(found.values())


def _parts(documents: Sequence[Document], cases: Sequence[CaseRow], coverage: Any) -> tuple[PartRow, ...]:
    by_name: dict[str, list[PartRow]] = {}
    for document in documents:
        for part in document.parts:
            by_name.setdefault(part.name, []).append(part)
    rows = {row.get("part"): row for row in coverage} if isinstance(coverage, tuple) else {}
    return tuple(_part(members, [c for c in cases if c.part == name], rows.get(name)) for name, members in by_name.items())


def _part(members: Sequence[PartRow], cases: Sequence[CaseRow], row: dict[str, Any] | None) -> PartRow:
    if len(members) == 1:
        return members[0]
    good = sum(case.verdict == "PASS" for case in cases)
    text = f"{good} of {num(len(cases), 'case')} held"
    if row is not None and isinstance(row.get("states"), int):
        text = coverage_text(row, sum(case.states for case in cases))
    if any(part.outcome == "INCONCLUSIVE" for part in members) and not cases:
        text = next(part.text for part in members if part.outcome == "INCONCLUSIVE")
    facts = {
        "outcome": worst({part.outcome for part in members}),
        "text": text,
        # A share without a case of its own cannot tell what sort of part it is.
        "explored": all(part.explored for part in members),
        "lines": tuple(dict.fromkeys(line for part in members for line in part.lines)),
        "duration_s": sum(part.duration_s for part in members),
    }
    return members[0].model_copy(update=facts)


def _findings(documents: Sequence[Document]) -> tuple[FoundRow, ...]:
    found: dict[tuple[str, ...], FoundRow] = {}
    for one in (finding for document in documents for finding in document.findings):
        key = one.key or (one.kind, one.component, one.text)
        known = found.get(key)
        together = () if known is None else tuple(dict.fromkeys((*known.seen, *one.seen)))
        found[key] = one if known is None else known.model_copy(update={"seen": together})
    return tuple(found.values())


def _rows(document: Document) -> Iterable[dict[str, Any]]:
    return document.coverage if isinstance(document.coverage, tuple) else ()


def _coverage(documents: Sequence[Document]) -> tuple[dict[str, Any], ...] | dict[str, Any]:
    """Per part: what was done is added up, what there is is the same for all."""
    tables: dict[str, Any] = {}
    for document in documents:
        if isinstance(document.coverage, dict):
            tables = _added(tables, document.coverage)
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for document in documents for row in _rows(document)):
        key = str(row.get("part", len(rows)))
        known = rows.get(key)
        rows[key] = dict(row) if known is None else _row(known, row)
    if tables and rows:
        return {**tables, "parts": list(rows.values())}
    return tables or tuple(rows.values())


def _row(known: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    added = {key: known[key] + row[key] for key in _SUMMED if isinstance(known.get(key), int) and isinstance(row.get(key), int)}
    if isinstance(known.get("distinct"), int):
        done = [added.get(key, 0) for key in ("judged", "left_out")]
        asked = max(known.get("not_asked", 0), row.get("not_asked", 0))
        added["not_asked"] = asked
        added["elsewhere"] = max(0, known["distinct"] - sum(done) - asked)
    if "duration_s" in known and "duration_s" in row:
        added["duration_s"] = max(known["duration_s"], row["duration_s"])
    return {**row, **known, **added}


def _added(known: Any, new: Any) -> Any:
    """Tables of counts, cell by cell; of anything else, what stood there first."""
    if isinstance(known, dict) and isinstance(new, dict):
        return {
            key: _added(known[key], new[key]) if key in known and key in new else known.get(key, new.get(key))
            for key in {**known, **new}
        }
    counts = isinstance(known, int | float) and isinstance(new, int | float) and not isinstance(known, bool)
    return known + new if counts else known


def _with_cases(document: Document | None, rest: Sequence[CaseRow]) -> Document:
    base = document or Document()
    cases = (*base.cases, *rest)
    facts: dict[str, Any] = {
        "cases": cases,
        "findings": (*base.findings, *grouped(rest)),
        "summary": summary_of(cases, base.took_s),
    }
    undecided = [f"{case.id}: {case.text.partition(': ')[2].splitlines()[0]}" for case in rest if case.verdict == "INCONCLUSIVE"]
    facts["undecided"] = (*base.undecided, *undecided)
    return base.model_copy(update=facts)
