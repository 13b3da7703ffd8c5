"""The text of an issue, in Markdown: what was done, what was expected, what was seen, and how anyone sees it again. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.bug_report import Report
from harness.plan import narrate
from harness.report.text import render

_SHOWN_LINES = 16
_SHOWN_CHARACTERS = 400


def issue_text(report: Report) -> str:
    """The issue of a report; paths and names are replaced when it is written."""
    root = report.verdict.root
    assert root is not None
    parts = [
        f"# {root.kind} ({report.verdict.component}): {root.message}",
        "## What was done",
        "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(narrate(report.plan), 1)),
        "## What was expected, and what was seen",
        _fenced("text", _without_repeat(render(report.verdict, Path()), bool(report.diagnosis))),
        *_losses(report),
        *_diagnosis(report.diagnosis),
        "## How to see it again",
        _repeat(report),
        "## Versions",
        "| | |\n|---|---|\n" + "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in report.facts.items()),
        "## The log where they part",
        _log(report),
    ]
    return "\n\n".join(parts) + "\n"


def _without_repeat(text: str, told_below: bool) -> str:
    left_out = ("repeat: ", "diagnosis: ") if told_below else ("repeat: ",)
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith(left_out))


def _fenced(language: str, text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _losses(report: Report) -> list[str]:
    rows = [f"| {batch} | {golden!r} | {resumed!r} | {abs(golden - resumed):.1e} |" for batch, golden, resumed in report.losses]
    return ["\n".join(["| batch | uninterrupted | resumed | difference |", "|---|---|---|---|", *rows])] if rows else []


def _diagnosis(diagnosis: Any) -> list[str]:
    if isinstance(diagnosis, dict) and isinstance(diagnosis.get("text"), str):  # it says all that the rest of it says
        diagnosis = diagnosis["text"]
    return ["## Likely cause", "\n".join(_sentences(diagnosis))] if diagnosis else []


def _sentences(value: Any, name: str = "") -> list[str]:
    """A diagnosis in whatever shape it is stored: a text, or texts with names."""
    label = f"{name.replace('_', ' ')}: " if name else ""
    if isinstance(value, dict):
        return [line for key, item in value.items() if item not in (None, "", [], {}) for line in _sentences(item, str(key))]
    if isinstance(value, list):
        return [line for item in value for line in _sentences(item, name)]
    return [f"- {label}{value}"]


def _repeat(report: Report) -> str:
    harness = report.facts.get("harness", "")
    lines = [f"With `replay.toml` of this report and resume-harness {harness} (Linux; `pip install resume-harness`):"]
    steps = [_fenced("bash", "harness replay replay.toml")]
    notes = [f"- {note}" for note in report.notes]
    return "\n\n".join([*lines, *steps, *(["\n".join(notes)] if notes else [])])


def _log(report: Report) -> str:
    shown = []
    for name, text in report.files.items():
        if name.startswith("log/") and name.endswith((".jsonl", ".stderr")) and not name.endswith("operations.jsonl"):
            lines = [line[:_SHOWN_CHARACTERS] + "…" * (len(line) > _SHOWN_CHARACTERS) for line in text.splitlines()]
            shown.append(
                f"`{name}`\n\n" + _fenced("json" if name.endswith("jsonl") else "text", "\n".join(lines[-_SHOWN_LINES:]))
            )
    inner = "\n\n".join(shown) or "No record."
    return f"<details>\n<summary>records around the first difference</summary>\n\n{inner}\n\n</details>"
