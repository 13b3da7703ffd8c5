"""Which fields a record of a log must and may have, and of which type: a damaged log is a problem in words, never an exception.

Responsible for: what readers take for granted (docs/event-log.md has the meaning); a field that is not named may be anything.
Not responsible for: `batch` records of which numbers are texts; `harness.store.Batch` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.failures import COMPONENTS

_MAX_NUMBER = 2**63
_MAX_RANKS = 64

Check = Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) < _MAX_NUMBER


def _count(value: Any) -> bool:
    return _whole(value) and value >= 0


def _ranks(value: Any) -> bool:
    return _whole(value) and 1 <= value <= _MAX_RANKS


def _number(value: Any) -> bool:
    # Compared before it is made a float, which a whole number of many digits cannot be; a NaN is below nothing.
    return type(value) in (int, float) and abs(value) < _MAX_NUMBER


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _said(value: Any) -> bool:
    """Texts; None for what is gone."""
    return isinstance(value, dict) and all(one is None or isinstance(one, str) for one in value.values())


def _numbers(value: Any) -> bool:
    # A best value so far may be infinite.
    return isinstance(value, dict) and all(type(one) in (int, float) for one in value.values())


def _nested(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_texts, value.values()))


def _digests(value: Any) -> bool:
    return _texts(value) and all(name.partition(".")[0] in COMPONENTS for name in value)


def _lines(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _entry(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _count(value[0]) and isinstance(value[1], str)


def _files(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_entry, value.values()))


def _heads(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, list) and all(map(_entry, one)) for one in value.values())


def _skipped(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and {"path", "reason"} <= one.keys() for one in value)


def _list(value: Any) -> bool:
    return isinstance(value, list)


# Event → field → (how it must be, whether it must be there; one that may be missing may be null too).
_NEEDED: dict[str, dict[str, Check]] = {
    "resume": {"step": _count},
    "state": {"moment": _text, "digests": _digests},
    "save": {"moment": _text},
    "end": {"step": _count, "batches": _count},
    "launched": {"world_size": _ranks},
    "exited": {"rank": _whole},
    "files": {"moment": _text, "files": _files},
    "committed": {"step": _count, "checkpoint": _text, "files": _files},
    "fired": {"fault": _text},
    "operation": {"operation": _text, "path": _text},
}
_ALLOWED: dict[str, dict[str, Check]] = {
    "": {"time_s": _number, "rank": _whole},
    "start": {"world_size": _ranks},
    "resume": {"checkpoint": _text, "batch": _count, "skipped": _skipped},
    "state": {
        "step": _count,
        "common": _digests,
        "own": _digests,
        "micro": _count,
        "values": _numbers,
        "averages": _texts,
        "generators": _texts,
        "modes": _texts,
        "attributes": _said,
        "parts": _nested,
        "rounded": _nested,
    },
    "save": {"checkpoint": _text, "step": _count, "batch": _count, "error": _text},
    "refuse": {"error": _text},
    "failed": {"error": _text},
    "exited": {"code": _whole, "signal": _text, "kind": _text},
    "files": {"heads": _heads},
    "fired": {"step": _whole, "operation": _text, "path": _text},
    "damaged": {"checkpoint": _text, "path": _text, "fault": _text, "step": _count},
    "ended": {"duration_s": _number},
    "launched": {"log": _text, "faults": _lines},
    "leftover": {"processes": _list, "shared_memory": _list, "mounts": _list},
    "operation": {"to": _text, "n": _count, "tampered": _text, "call": _text},
}
_MAY_HAVE = {event: {**_ALLOWED[""], **fields} for event, fields in _ALLOWED.items()}
# A save that is begun or done is of some checkpoint; one that failed may not have got so far.
_SAVES = ("begin", "end")


def wrong_field(record: dict[str, Any]) -> str:
    """The first field that is missing or of another type, or ""."""
    event = record["event"]
    for name, check in _NEEDED.get(event, {}).items():
        if not check(record.get(name)):
            return name
    for name, check in _MAY_HAVE.get(event, _ALLOWED[""]).items():
        if record.get(name) is not None and not check(record[name]):
            return name
    if event == "save" and record["moment"] in _SAVES:
        return next((name for name in ("checkpoint", "step") if record.get(name) is None), "")
    return ""
