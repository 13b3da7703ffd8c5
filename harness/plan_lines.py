"""In which line of a replay file something stands that is wrong, for people who edit it by hand.

Responsible for: finding the line again that a problem speaks of. Neither TOML reader keeps lines of what it has read, so they are
looked for in the text: the table, then the key in it; of a fault its sentence. Where the text does not say (an inline table, a
sentence that is written with escapes), there is no line, and the problem is said without one.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[\s*([\w.\"' -]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"\s*[\"']?([\w.-]+)[\"']?\s*=")
_PLACE = re.compile(r"([a-z_]+(?:\.[a-z_A-Z0-9-]+)*): ")
_QUOTED = re.compile(r"'([^']+)'")
_TABLES = ("workload", "expected", "versions")


def line_of(problem: str, text: str) -> int | None:
    """The line, from 1, that a problem of a replay file speaks of; None where it cannot be told."""
    lines = text.splitlines()
    if problem.startswith("unknown table"):
        return _header(lines, _first_quoted(problem)) or _key(lines, "", _first_quoted(problem))
    if problem.startswith("unknown schema"):
        return _key(lines, "", "schema")
    if problem.startswith("unknown entry"):
        return _header(lines, "scenario.workload") or _key(lines, "scenario", "workload")
    if place := _PLACE.match(problem):
        return _at(lines, place[1].split("."))
    # The sentences of faults are quoted in what is wrong with them.
    found = [
        number for number, line in enumerate(lines, 1) for sentence in _QUOTED.findall(problem)[:1] if f'"{sentence}"' in line
    ]
    return found[0] if found else None


def _at(lines: list[str], place: list[str]) -> int | None:
    table, rest = (place[0], place[1:]) if place[0] in _TABLES else ("scenario", place)
    if not rest:
        return _header(lines, table) or _key(lines, "", table)
    return _key(lines, table, rest[0]) or _key(lines, "", f"{table}.{rest[0]}") or _header(lines, table)


def _first_quoted(problem: str) -> str:
    quoted = _QUOTED.search(problem)
    return quoted[1] if quoted else ""


def _header(lines: list[str], name: str) -> int | None:
    for number, line in enumerate(lines, 1):
        header = _HEADER.match(line)
        if header and header[1].replace(" ", "") == name:
            return number
    return None


def _key(lines: list[str], table: str, name: str) -> int | None:
    inside = ""
    for number, line in enumerate(lines, 1):
        if header := _HEADER.match(line):
            inside = header[1].replace(" ", "")
        elif inside == table and (key := _KEY.match(line)) and key[1] == name:
            return number
    return None
