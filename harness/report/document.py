"""Results as data that is written, read and merged: the document `harness.result/1`.

Responsible for: what stands in it, reading it back with every problem found, and its one outcome.
Not responsible for: what it is made from (`harness.report.checked`, `harness.report.stored`), or how it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness import __version__
from harness.errors import UsageError
from harness.report.from_chaos import common

SCHEMA: Literal["harness.result/1"] = "harness.result/1"
RESULT_FILE = "result.json"
Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]
_SHOWN_PROBLEMS = 3


class _Row(BaseModel):
    """What is added by a later version is kept, and not looked at."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


class CaseRow(_Row):
    """One case, as `Verdict.to_json` says it, and where it belongs.

    Attributes:
        part: of the check, or the file of the test; "" where there is none.
        title: what was done, in words.
        text: what a terminal would show of it; "" for a PASS.
        states: how many equal crash states it stands for.
        world_sizes: numbers of ranks, attempt after attempt.
        shard: the share that it was run in, `2/4`; "" where nothing was split.
    """

    id: str
    fault: str = "none"
    verdict: Outcome
    kind: str | None = None
    component: str = "none"
    step: int | None = None
    rank: int | None = None
    file: str | None = None
    max_loss_diff: float | None = None
    resumed_from: int | None = None
    lost_steps: int | None = None
    replay: str = ""
    duration_s: float | None = 0.0
    part: str = ""
    title: str = ""
    text: str = ""
    states: int = 1
    world_sizes: tuple[int, ...] = ()
    shard: str = ""


class PartRow(_Row):
    """One part of a check: what came of it, in a line.

    Attributes:
        explored: its cases are states of an exploration, or runs of a search: too many for a line each.
        lines: what was found in it.
        duration_s: seconds.
        missing: it says that shares are missing, as far as was known then.
    """

    name: str
    outcome: Outcome
    text: str = ""
    explored: bool = False
    lines: tuple[str, ...] = ()
    duration_s: float = 0.0
    missing: bool = False


class FoundRow(_Row):
    """One cause, wherever it was seen (`harness.report.findings.Found`); `repeat` is the replay file.

    `shown` is that of a run that shows it, where `repeat` is a smaller one; `diagnosis` is a paragraph, `key` what makes it
    another cause than others.
    """

    kind: str
    component: str
    text: str
    seen: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    repeat: str = ""
    shown: str = ""
    diagnosis: str = ""
    key: tuple[str, ...] = ()


class BaselineRow(_Row):
    """The uninterrupted run; `deterministic` is None where there was none."""

    steps: int | None = None
    deterministic: bool | None = None


class SummaryRow(_Row):
    """How many cases of each outcome."""

    num_pass: int = Field(0, alias="pass")
    fail: int = 0
    inconclusive: int = 0
    cases_per_min: float | None = None


class Document(_Row):
    """Everything that is known of a check, a replay, a test session, or a night.

    Attributes:
        harness: the version that wrote it.
        command: the command line that was given.
        began: when, ISO 8601 with a time zone; "" where that is not known.
        took_s: seconds; `recording_s` of them for uninterrupted runs.
        shard: the share of the work that this is, "" for all of it.
        undecided, left_out: in words.
        notes: what a reader should know besides, such as results that could not be read.
        unfelt: what changed during training, was not restored, and was felt by nothing: name, component, expected, found.
        coverage: a table, or tables by their names.
    """

    schema_: Literal["harness.result/1"] = Field(SCHEMA, alias="schema")
    harness: str = __version__
    command: tuple[str, ...] = ()
    seed: int | None = None
    began: str = ""
    took_s: float | None = None
    recording_s: float | None = None
    shard: str = ""
    baseline: BaselineRow = BaselineRow()
    summary: SummaryRow = SummaryRow()
    parts: tuple[PartRow, ...] = ()
    findings: tuple[FoundRow, ...] = ()
    undecided: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unfelt: tuple[dict[str, Any], ...] = ()
    coverage: tuple[dict[str, Any], ...] | dict[str, Any] = ()
    causes: tuple[dict[str, Any], ...] = ()
    cases: tuple[CaseRow, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of all cases and parts; nothing at all is nothing shown."""
        words = {case.verdict for case in self.cases} | {part.outcome for part in self.parts}
        if "FAIL" in words:
            return "FAIL"
        return "INCONCLUSIVE" if "INCONCLUSIVE" in words or not words else "PASS"

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return self.model_dump(mode="json", by_alias=True)


def summary_of(cases: Iterable[CaseRow], took_s: float | None) -> SummaryRow:
    """Counts the cases."""
    words = [case.verdict for case in cases]
    rate = 60 * len(words) / took_s if took_s else None
    counts = {"pass": words.count("PASS"), "fail": words.count("FAIL"), "inconclusive": words.count("INCONCLUSIVE")}
    return SummaryRow.model_validate({**counts, "cases_per_min": rate})


def clean(value: Any) -> Any:
    """The same data with texts that are UTF-8: the name of a file need not be."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    return [clean(one) for one in value] if isinstance(value, list | tuple) else value


def now() -> str:
    """This moment, for `began`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def parse_document(text: str, where: Path) -> Document:
    """Reads a document.

    Raises:
        UsageError: it is no JSON, of another version, or not what this version writes.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError([f"{where} is no JSON ({error}); it was cut short, or is no result of the harness"]) from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        other = isinstance(schema, str) and schema.startswith("harness.result/")
        advice = "read it with the version of the harness that wrote it" if other else "expected what --json has written"
        said = f" (written by harness {data.get('harness')})" if other and isinstance(data, dict) else ""
        raise UsageError([f"{where}: the schema is {schema!r}{said}, this version reads {SCHEMA!r}; {advice}"])
    try:
        return Document.model_validate(clean(common(data)))
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        more = f"; and {len(found) - _SHOWN_PROBLEMS} more" if len(found) > _SHOWN_PROBLEMS else ""
        raise UsageError([f"{where} is damaged: {'; '.join(found[:_SHOWN_PROBLEMS])}{more}"]) from None


def to_text(document: Document) -> str:
    """The document as strict JSON."""
    return json.dumps(document.to_json(), indent=1, allow_nan=False) + "\n"
