"""Night after night: what each of them found, in a file of one line a night that is kept between them.

Responsible for: reading and adding to the file, and since when each cause has been seen. A line that cannot be read is said, and
kept as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import UsageError
from harness.report.document import Document, FoundRow

SCHEMA = "harness.night/1"
CHAOS_SCHEMA = "harness.history/1"  # what chaos leaves in its corpus
HISTORY_FILE = "history.jsonl"
_BY_CHAOS = "found by chaos"
_ONE_NIGHT = timedelta(hours=12)


class Night(BaseModel):
    """One night, or one run of anything that was stored.

    Attributes:
        began: ISO 8601.
        harness: the version.
        passed, failed, undecided: cases.
        causes: kind, component and text of each finding.
        group: what tells the night, where several shares have a line each; "" where none has.
        share: which of them this is, "" for the whole.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    began: str
    harness: str = ""
    passed: int = 0
    failed: int = 0
    undecided: int = 0
    causes: tuple[tuple[str, str, str], ...] = ()
    group: str = ""
    share: str = ""


def night_of(document: Document) -> Night:
    """What is kept of a document."""
    words = [case.verdict for case in document.cases]
    return Night(
        began=document.began,
        harness=document.harness,
        passed=words.count("PASS"),
        failed=words.count("FAIL"),
        undecided=words.count("INCONCLUSIVE"),
        causes=tuple(map(_cause, document.findings)),
        group=_group(document.seed) if "chaos" in document.command[:3] else "",
        share=document.shard,
    )


def _cause(finding: FoundRow) -> tuple[str, str, str]:
    """What is the same cause in another night; what chaos finds has other words in each, since it is drawn anew."""
    if finding.key[:1] == ("chaos",) and len(finding.key) > 2:
        return finding.kind, finding.key[2], _BY_CHAOS
    return finding.kind, finding.component, finding.text


def _group(seed: object) -> str:
    return f"seed {seed}"


def read_history(file: Path) -> tuple[list[Night], list[str]]:
    """The nights of a file, and what of it cannot be read; a file that does not exist is an empty one.

    Raises:
        UsageError: it cannot be opened.
    """
    nights, problems = [], []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    except OSError as error:
        raise UsageError(
            [f"cannot read {file}: {error.strerror}; expected a file of nights, or one that is still to be made"]
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                nights.append(_night(json.loads(line)))
            except (ValueError, RecursionError, ValidationError) as error:
                problems.append(
                    f"{file} line {number} is no night of this version ({str(error).splitlines()[0]}); it is left as it is"
                )
    return nights, problems


def _night(data: Any) -> Night:
    if isinstance(data, dict) and data.get("schema") == CHAOS_SCHEMA:
        return _night_of_chaos(data)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"schema {found!r}, expected {SCHEMA!r}")
    return Night.model_validate({key: value for key, value in data.items() if key != "schema"})


def _night_of_chaos(data: dict[str, Any]) -> Night:
    try:
        ended = datetime.fromtimestamp(float(data["time_s"]), UTC).isoformat(timespec="milliseconds")
        began = str(data.get("began") or ended)
        causes = tuple((str(kind), str(component), _BY_CHAOS) for kind, component, _ in data.get("groups", ()))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"no night of chaos: {error!r}") from None
    counts = {"passed": data.get("pass", 0), "failed": data.get("fail", 0), "undecided": data.get("inconclusive", 0)}
    shard = data.get("shard")
    share = f"{shard[0]}/{shard[1]}" if isinstance(shard, list) and len(shard) == 2 and shard[1] != 1 else ""
    facts = {"began": began, "harness": str(data.get("harness", "")), "causes": causes, "share": share}
    return Night.model_validate({**facts, **counts, "group": _group(data.get("seed"))})


def line_of(night: Night) -> str:
    """A night as a line of the file."""
    return json.dumps({"schema": SCHEMA, **night.model_dump(mode="json")}) + "\n"


def add_night(file: Path, night: Night, known: Sequence[Night]) -> None:
    """Appends a night, unless it is there already. Raises: UsageError: the file cannot be written."""
    if night in known:
        return
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
        with file.open("a", encoding="utf-8") as opened:
            opened.write(("\n" if text and not text.endswith("\n") else "") + line_of(night))
    except OSError as error:
        raise UsageError([f"cannot write {file}: {error.strerror}"]) from None


def in_order(nights: Sequence[Night]) -> list[Night]:
    """Each night once, the oldest first; the lines of its shares are one night, and the whole is taken where it is known."""
    groups: dict[str, list[list[Night]]] = {}
    for night in sorted((night for night in nights if night.began), key=lambda night: night.began):
        known = groups.setdefault(night.group or night.began, [])
        if known and _same_night(known[-1], night):
            known[-1].append(night)
        else:
            known.append([night])
    found = [_one(members) for group in groups.values() for members in group]
    return sorted(found, key=lambda night: night.began)


def _same_night(members: Sequence[Night], other: Night) -> bool:
    """Whether a line is of that night too: each night may be given the same seed, and all of its shares begin on one day."""
    if any(one.share == other.share and one.began != other.began for one in members):
        return False
    first, last = _moment(members[0].began), _moment(other.began)
    return first is None or last is None or last - first <= _ONE_NIGHT


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _one(members: Sequence[Night]) -> Night:
    whole = [night for night in members if not night.share]
    if whole:
        return whole[-1]
    shares = list({night.share: night for night in members}.values())
    facts = {
        "began": min(night.began for night in shares),
        "passed": sum(night.passed for night in shares),
        "failed": sum(night.failed for night in shares),
        "undecided": sum(night.undecided for night in shares),
        "causes": tuple(dict.fromkeys(cause for night in shares for cause in night.causes)),
    }
    return shares[0].model_copy(update=facts)
