from __future__ import annotations

import json
import math
import os

import pytest

from harness.probe import event_log
from harness.probe.event_log import EventLog, format_float


def test_a_record_is_one_write_of_one_line(tmp_path, monkeypatch):
    writes = []
    write = os.write
    monkeypatch.setattr(event_log.os, "write", lambda descriptor, data: (writes.append(data), write(descriptor, data))[1])
    log = EventLog(tmp_path / "attempt-000", 3)
    log.write("save", {"moment": "begin", "step": 4})
    log.write("end", {})
    log.close()
    assert len(writes) == 2
    lines = (tmp_path / "attempt-000/rank-3.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first.pop("time_s") > 0
    assert first == {"event": "save", "rank": 3, "moment": "begin", "step": 4}


def test_records_are_appended(tmp_path):
    for _ in range(2):
        log = EventLog(tmp_path, 0)
        log.write("start", {})
        log.close()
    assert len((tmp_path / "rank-0.jsonl").read_text().splitlines()) == 2


def test_not_a_number_is_no_json(tmp_path):
    log = EventLog(tmp_path, 0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.write("batch", {"loss": math.nan})
    log.close()


def test_a_record_cut_short_is_an_error(tmp_path, monkeypatch):
    log = EventLog(tmp_path, 0)
    monkeypatch.setattr(event_log.os, "write", lambda descriptor, data: len(data) - 1)
    with pytest.raises(OSError, match="bytes of a record"):
        log.write("end", {})
    log.close()


@pytest.mark.parametrize(
    ("value", "text"), [(1.5, "0x1.8000000000000p+0"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_floats(value, text):
    assert format_float(value) == text
