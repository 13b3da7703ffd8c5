"""A document for people without a browser: as text for a terminal, as Markdown for the page of a CI run. Pure.

Responsible for: layout, and that nothing a job has printed can break it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from harness.plan import replay_line
from harness.report.checked import found_lines
from harness.report.document import CaseRow, Document, FoundRow
from harness.report.exploration import num

_SHOWN_SEEN, _SHOWN_FINDINGS, _SHOWN_CASES = 6, 40, 100
_MARKS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔"}


def text(document: Document) -> str:
    """The parts, a line each; then every finding; then what could not be judged and what was left out; then the outcome."""
    lines = [f"{part.outcome:<12} {part.name}: {part.text}" for part in document.parts]
    for number, one in enumerate(document.findings, 1):
        lines += ["", f"{number}. {one.kind} ({one.component}): {one.text}"]
        lines += [f"   {line}" for line in one.lines]
        lines += [f"   diagnosis: {one.diagnosis}"] if one.diagnosis else []
        lines += [f"   seen: {seen(one)}", f"   repeat: {replay_line(one.repeat)}"]
    for name, found in (("could not be judged", document.undecided), ("left out", document.left_out), ("note", document.notes)):
        lines += ["", f"{name}:", *(f"  {line}" for line in found)] if found else []
    return "\n".join([*lines, "", outcome_line(document)]).lstrip("\n")


def outcome_line(document: Document) -> str:
    """The outcome and how much was done."""
    found = f"{num(len(document.findings), 'finding')}; {num(len(document.cases), 'case')}"
    open_ones = sum(case.verdict == "INCONCLUSIVE" for case in document.cases)
    found += f", {open_ones} of them could not be judged" if open_ones else ""
    shard = f"; share {document.shard}" if document.shard else ""
    took = f" in {document.took_s:.1f} s" if document.took_s is not None else ""
    took += f" (uninterrupted runs {document.recording_s:.1f} s)" if document.recording_s else ""
    return f"{document.outcome}: {found}{took}{shard}"


def seen(found: FoundRow) -> str:
    """Where a cause was seen, a few of many places."""
    more = len(found.seen) - _SHOWN_SEEN
    return "; ".join(found.seen[:_SHOWN_SEEN]) + (f"; and {more} more" if more > 0 else "")


def markdown(document: Document, title: str = "") -> str:
    """A summary as CI systems show it (GitHub-flavoured Markdown)."""
    name = title or " ".join(document.command[:2]) or "harness report"
    lines = [f"## {_inline(name)}: {_MARKS[document.outcome]} {document.outcome}", "", _inline(outcome_line(document))]
    if document.parts:
        lines += ["", *_table(("", "part", ""), [(part.outcome, part.name, part.text) for part in document.parts])]
    elif document.cases:
        # The worst first, so that what is cut off is what passed.
        order = sorted(document.cases, key=lambda case: ("FAIL", "INCONCLUSIVE", "PASS").index(case.verdict))
        lines += [
            "",
            *_table(("", "case", ""), [(case.verdict, case.title or case.id, _said(case)) for case in order[:_SHOWN_CASES]]),
        ]
        left = len(order) - _SHOWN_CASES
        lines += ["", f"and {num(left, 'more case')}"] if left > 0 else []
    for number, one in enumerate(document.findings[:_SHOWN_FINDINGS], 1):
        block = [*found_lines(one), *([f"diagnosis: {one.diagnosis}"] if one.diagnosis else []), f"seen: {seen(one)}"]
        lines += ["", f"### {number}. {_inline(one.kind)} ({_inline(one.component)})", "", *_block("\n".join(block))]
    left = len(document.findings) - _SHOWN_FINDINGS
    lines += ["", f"and {num(left, 'more finding')}"] if left > 0 else []
    for name, found in (
        ("Could not be judged", document.undecided),
        ("Left out", document.left_out),
        ("Notes", document.notes),
    ):
        lines += ["", f"{name}:", "", *(f"- {_inline(line)}" for line in found)] if found else []
    return "\n".join(lines) + "\n"


def _said(case: CaseRow) -> str:
    return case.text.splitlines()[0] if case.text else "bit-equal" if case.max_loss_diff == 0 else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[_inline(cell) for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in (list(head), ["---"] * len(head), *cells)]


def _inline(text: str) -> str:
    """A text within a line: no line end, no markup, no end of a cell."""
    plain = html.escape(" ".join(_printable(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", plain)


def _block(text: str) -> list[str]:
    # Longer than any fence within, which would end it.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [fence, *(_printable(line) for line in text.splitlines()), fence]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
