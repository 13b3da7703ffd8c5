"""A document as JUnit XML, which most CI systems read. Pure.

Responsible for: one test case per case that was run from its start, one per part whose cases are states of an exploration; and
reading such files again, to put those of several machines together.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.report.document import CaseRow, Document, PartRow

_COUNTS = ("tests", "failures", "errors", "skipped")


def junit(document: Document, others: Sequence[ET.Element] = ()) -> str:
    """The XML: a suite per part (or one for all), with the counts that belong to it.

    Args:
        document: what was found.
        others: suites of other files, which stand behind those of the document.
    """
    root = ET.Element("testsuites", name=_plain(" ".join(document.command[:2]) or "harness"))
    for part in document.parts:
        suite = _suite(root, part.name, document)
        cases = [case for case in document.cases if case.part == part.name]
        if part.explored:
            _case_of_part(suite, part)
        for case in () if part.explored else cases:
            _case(suite, case, part.name)
    known = {part.name for part in document.parts}
    for name in dict.fromkeys(case.part for case in document.cases if case.part not in known):
        suite = _suite(root, name or "harness", document)
        for case in document.cases:
            if case.part == name:
                _case(suite, case, name or "harness")
    for suite in [*root, *others]:
        _count(suite)
    root.extend(others)
    for key in _COUNTS:
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def read_suites(path: Path) -> list[ET.Element]:
    """The suites of a JUnit file. Raises: UsageError: it is none."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314  expat 2.4.1 and newer refuses entities that blow up
    except (OSError, ET.ParseError, ValueError) as error:
        raise UsageError([f"{path} is no JUnit XML ({error}); it was cut short, or is something else"]) from None
    if root.tag == "testsuite":
        return [root]
    if root.tag != "testsuites":
        raise UsageError([f"{path} is no JUnit XML: its root is <{root.tag}>; expected <testsuites> or <testsuite>"])
    return list(root.findall("testsuite"))


def _suite(root: ET.Element, name: str, document: Document) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=_plain(name))
    if document.began:
        suite.set("timestamp", document.began[:19])  # the common schema has no time zone
    return suite


def _case(suite: ET.Element, case: CaseRow, name: str) -> None:
    title = case.title or case.id
    element = ET.SubElement(suite, "testcase", classname=_plain(name), name=_plain(title), time=f"{case.duration_s or 0.0:.3f}")
    _say(element, case.verdict, case.kind or "", case.text or case.fault)


def _case_of_part(suite: ET.Element, part: PartRow) -> None:
    name = _plain(part.name)
    element = ET.SubElement(suite, "testcase", classname=name, name=name, time=f"{part.duration_s:.3f}")
    _say(element, part.outcome, part.outcome, "\n".join(part.lines) or f"{part.outcome} {part.name}: {part.text}")


def _say(element: ET.Element, outcome: str, kind: str, text: str) -> None:
    # JUnit knows no third outcome: what could not be judged has not been tested.
    if outcome != "PASS":
        word = "failure" if outcome == "FAIL" else "skipped"
        child = ET.SubElement(element, word, message=_plain((text.splitlines() or [""])[0]), type=kind)
        child.text = _plain(text)


def _count(suite: ET.Element) -> None:
    found = list(suite.iter("testcase"))
    counts = {"tests": len(found)}
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        counts[key] = sum(case.find(tag) is not None for case in found)
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    suite.set("time", f"{sum(float(case.get('time') or 0) for case in found):.3f}")


def _plain(text: str) -> str:
    """What XML can hold: a job may print anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
