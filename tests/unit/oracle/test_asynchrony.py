"""The asynchrony oracle on hand-written logs."""

from __future__ import annotations

import pytest
from histories import STEPS, attempt, baseline, only, run_of, scenario

from harness.oracle.asynchrony import asynchrony


def case(tmp_path, format, lag):
    """A job whose saves end `lag` batches after they began."""
    one = attempt(0, 1, STEPS, path=tmp_path, ended=True)
    for log in one.ranks.values():
        ends = [r for r in log.records if r["event"] == "save" and r["moment"] == "end"]
        for end in ends:
            log.records.remove(end)
            later = [n for n, r in enumerate(log.records) if r["event"] == "batch" and r["batch"] == end["step"] + lag]
            log.records.insert(later[0] + 1 if later and lag else _after_begin(log.records, end), end)
    return asynchrony(run_of(one, case=scenario(faults=(), format=format)), baseline())


def _after_begin(records, end):
    begins = [n for n, r in enumerate(records) if r["event"] == "save" and r["checkpoint"] == end["checkpoint"]]
    return begins[0] + 1


@pytest.mark.parametrize("lag", [1, 3])
def test_training_that_goes_on_passes(tmp_path, lag):
    assert case(tmp_path, "dcp-async", lag) == []


def test_training_that_waits_is_found_once_and_counted(tmp_path):
    finding = only(case(tmp_path, "dcp-async", 0), "blocking-save")
    # Of six saves on two ranks, the one after the last batch may wait.
    assert "(10 such saves)" in finding.message
    assert (finding.component, finding.rank, finding.attempt) == ("process", 0, 0)


def test_a_format_that_promises_nothing_may_wait(tmp_path):
    assert case(tmp_path, "dcp", 0) == []
