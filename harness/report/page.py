"""The page: everything that a document and its run directories say, as one HTML file that needs nothing else.

Responsible for: choosing what is shown of very much, and what the template is given; the template engine escapes every text.
Not responsible for: the plots (`harness.report.plots`), the layout (`page.html.j2`, `page.css`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.plan import narrate, replay_line
from harness.report.curves import Curves, read_curves
from harness.report.document import CaseRow, Document
from harness.report.extra import missing_extra
from harness.report.history import Night, in_order
from harness.report.matrix import GROUPS, coverage_tables, matrix, worst_first
from harness.report.stored import Places, StoredRun
from harness.report.summary import outcome_line, seen
from harness.report.timeline import LISTED, WIDE, Timeline, timeline
from harness.store import read_run

if TYPE_CHECKING:
    from markupsafe import Markup

SHOWN_RUNS, SHOWN_CASES, SHOWN_FINDINGS, SHOWN_ATTEMPTS, SHOWN_LINES = 12, 200, 60, 4, 60
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Plot:
    """A picture for wide and for narrow screens."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class AttemptView:
    """The timeline of one attempt: the picture, what is left out of it, and the events around the fault as a list."""

    index: int
    plot: Plot | None
    note: str
    narrow_note: str
    events: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class RunView:
    """One run in full."""

    case: CaseRow
    path: str
    story: tuple[str, ...]
    diagnosis: str
    facts: tuple[str, ...]
    losses: Plot | None
    curves: Curves | None
    notes: tuple[str, ...]
    attempts: tuple[AttemptView, ...]


def page(document: Document, runs: Sequence[StoredRun], nights: Sequence[Night] = (), num_runs: int = SHOWN_RUNS) -> str:
    """The HTML.

    Args:
        document: what was found.
        runs: run directories; those of the document's failures are shown first.
        nights: earlier ones and this one.
        num_runs: how many runs are shown in full.

    Raises:
        UsageError: the extra `report` is not installed.
    """
    if problems := missing_extra():
        raise UsageError(problems)
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    chosen = _chosen(document, runs)
    shown = [_view(run) for run in chosen[:num_runs]]
    cases = worst_first(document.cases)
    return environment.get_template("page.html.j2").render(
        replay_line=replay_line,
        document=document,
        title=" ".join(document.command) or "stored runs",
        outcome=document.outcome,
        line=outcome_line(document),
        css=(_HERE / "page.css").read_text(encoding="utf-8"),
        findings=document.findings[:SHOWN_FINDINGS],
        num_more_findings=max(0, len(document.findings) - SHOWN_FINDINGS),
        seen=seen,
        links={run.case.replay: number for number, run in enumerate(shown, 1)},
        matrix=matrix(document.cases),
        groups=GROUPS,
        coverage=_coverage(document),
        tables=coverage_tables(document.cases),
        nights=_nights(nights),
        runs=shown,
        num_more_runs=len(chosen) - len(shown),
        cases=cases[:SHOWN_CASES],
        num_more_cases=max(0, len(cases) - SHOWN_CASES),
    )


def _chosen(document: Document, runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The runs as a reader wants them: one per finding, then other failures, then what is open, then the rest."""
    places = Places(runs)
    first = [run for one in document.findings if (run := places.showing(one)) is not None]
    order = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
    rest = sorted(runs, key=lambda run: order[run.row.verdict])
    return list({run.path: run for run in [*first, *rest]}.values())


# --- one run


def _view(stored: StoredRun) -> RunView:
    found = read_curves(stored.path)
    problems = [found] if isinstance(found, str) else list(found.notes)
    curves = None if isinstance(found, str) else found
    attempts: tuple[AttemptView, ...] = ()
    try:
        run = read_run(stored.path)
    except UsageError as error:
        problems.append(error.problems[0])
    else:
        lines = [line for attempt in run.attempts if (line := timeline(attempt)) is not None]
        attempts = tuple(_attempt(line) for line in lines[:SHOWN_ATTEMPTS])
        if len(lines) > SHOWN_ATTEMPTS:
            problems.append(f"the timelines of the first {SHOWN_ATTEMPTS} of {len(lines)} attempts are shown")
        problems += run.problems[:3]
    return RunView(
        case=stored.row,
        path=str(stored.path),
        story=tuple(narrate(stored.plan)) if stored.plan else (),
        diagnosis=stored.diagnosis,
        facts=stored.facts[:SHOWN_LINES],
        losses=_loss_plot(curves) if curves else None,
        curves=curves,
        notes=tuple(dict.fromkeys([*([stored.note] if stored.note else []), *problems])),
        attempts=attempts,
    )


def _plot(pair: tuple[str, str]) -> Plot:
    from markupsafe import Markup

    wide, narrow = pair
    return Plot(Markup(wide), Markup(narrow))  # noqa: S704  drawn by us; matplotlib escapes every text in it


def _loss_plot(curves: Curves) -> Plot:
    from harness.report.plots import loss_svgs

    return _plot(loss_svgs(curves))


def _attempt(line: Timeline) -> AttemptView:
    from harness.report.plots import timeline_svgs
    from harness.report.timeline import NARROW

    listed = line.window(LISTED)
    events = tuple(
        {
            "number": str(listed.first + number),
            "time": f"{event.time_s:.3f}",
            "rank": str(event.rank) if event.rank >= 0 else "",
            "what": event.what + (f" ({event.error})" if event.error else ""),
            "text": event.text,
            "mark": "bad" if event.bad else "good" if event.what in ("fsync", "commit") else "",
        }
        for number, event in enumerate(listed.events, 1)
    )
    return AttemptView(line.attempt, _plot(timeline_svgs(line)), line.window(WIDE).note, line.window(NARROW).note, events)


# --- tables


def _coverage(document: Document) -> list[dict[str, Any]]:
    """Per part (or table) its facts as pairs, and the share of distinct states that was judged, in percent."""
    tables = document.coverage if isinstance(document.coverage, dict) else {"": list(document.coverage)}
    found = []
    for name, rows in tables.items():
        for row in rows if isinstance(rows, list | tuple) else [rows]:
            facts = row if isinstance(row, dict) else {name: row}
            distinct, judged = facts.get("distinct"), facts.get("judged")
            share = 100 * judged / distinct if isinstance(distinct, int) and isinstance(judged, int) and distinct else None
            pairs = [
                (key.replace("_", " "), _fact(value))
                for key, value in facts.items()
                if key != "part" and value not in (None, "", [], 0)
            ]
            found.append({"name": str(facts.get("part", name or "coverage")), "facts": pairs, "share": share})
    return found


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(one)}" for key, one in value.items())
    return str(value) if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)


def _nights(nights: Sequence[Night]) -> dict[str, Any] | None:
    """The picture, and since when each cause has been seen; None for a single night, which has no history."""
    ordered = in_order(nights)
    if len(ordered) < 2:
        return None
    from harness.report.plots import nights_svgs

    causes: dict[tuple[str, str, str], list[str]] = {}
    for night in ordered:
        for cause in night.causes:
            causes.setdefault(cause, []).append(night.began)
    last = ordered[-1].began
    rows = [
        {
            "kind": kind,
            "component": component,
            "text": text,
            "first": times[0][:10],
            "last": times[-1][:10],
            "count": len(times),
            "open": times[-1] == last,
        }
        for (kind, component, text), times in causes.items()
    ]
    rows.sort(key=lambda row: (not row["open"], str(row["first"])))
    return {"plot": _plot(nights_svgs(ordered)), "rows": rows, "num": len(ordered), "first": ordered[0].began[:10]}
