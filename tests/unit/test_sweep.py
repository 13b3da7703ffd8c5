"""What a sweep says of its cases: grouped by what was done to which files, and never PASS for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.crash_states import Points
from harness.damages import Damage
from harness.oracle.finding import fail, inconclusive
from harness.oracle.verdict import Verdict, decide
from harness.scenario import job
from harness.sweep import Sweep, Swept, find_damage_causes
from harness.trace import InitialFile, Mark, Operation, Trace

FAILED = fail("corrupt-accepted", "integrity", "resumed", component="checkpoint-files")


def swept(file, what, *findings, number=0):
    outcome, ordered, component = decide(findings)
    verdict = Verdict(f"case-{number}", "none", outcome, ordered, component, replay=f"runs/{number}/plan.toml")
    return Swept(Damage(f"flip newest/{file} at byte {number}", "flip", file, what), verdict, Path(f"runs/{number}"))


def result(*judged, **more):
    values = {"num_possible": 900, "num_listed": len(judged), "num_unchanged": 0, **more}
    return Sweep(job(), "step-00000003", judged=judged, causes=tuple(find_damage_causes(judged)), **values)


def test_failures_are_grouped_over_ranks_by_region_and_by_kind():
    judged = [
        swept("rank0.bin", "a bit in the data of", FAILED, number=1),
        swept("rank0.bin", "a bit in the pickle of", FAILED, number=2),
        swept("rank1.bin", "a bit in the data of", FAILED, number=3),
        swept("rank1.bin", "a bit in the data of", fail("hang", "liveness", "hangs", component="process"), number=4),
        swept("rank1.bin", "a bit in the data of", number=5),
    ]
    causes = find_damage_causes(judged)
    assert [(cause.kind, cause.text, cause.num_cases) for cause in causes] == [
        ("corrupt-accepted", "a bit in the data of rank*.bin", 2),
        ("corrupt-accepted", "a bit in the pickle of rank*.bin", 1),
        ("hang", "a bit in the data of rank*.bin", 1),
    ]
    assert causes[0].first is judged[0]
    assert result(*judged).outcome == "FAIL"
    text = result(*judged).describe()
    assert text.startswith("FAIL: 5 damages of step-00000003 in")
    assert "corrupt-accepted of checkpoint-files: a bit in the data of rank*.bin (2 cases)" in text
    assert "repeat: harness replay runs/1/plan.toml" in text


def test_what_was_not_tried_or_not_judged_is_no_pass():
    good = swept("rank0.bin", "a bit of", number=1)
    undecided = swept("rank0.bin", "a bit of", inconclusive("out-of-time", "control", "too late"), number=2)
    assert result(good).outcome == "PASS"
    assert result().outcome == "INCONCLUSIVE"
    assert result(good, left_out=1).outcome == "INCONCLUSIVE"
    assert result(good, inconclusive="no two checkpoints").outcome == "INCONCLUSIVE"
    assert result(good, undecided).outcome == "INCONCLUSIVE"
    assert "undecided: flip newest/rank0.bin at byte 2: too late" in result(good, undecided).describe()


# --- the moment between two saves


def operation(n, name, path, to=None, **facts):
    return Operation(n=n, rank=0, index=n - 1, operation=name, call=name, path=path, to=to, size_bytes=0, inode=n, **facts)


def saved(number, name):
    """What rank 0 does in a save, and the batch behind it."""
    first = 3 * number - 2
    return [
        Mark(0, "save", "begin", number, name),
        operation(first, "open", f"{name}.tmp", created=True, mode=0o644),
        operation(first + 1, "rename", f"{name}.tmp", name),
        operation(first + 2, "fsync", "."),
        Mark(0, "save", "end", number, name),
        Mark(0, "batch", "", number + 1, None),
    ]


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"")
    events = [Mark(0, "batch", "", 1, None), *saved(1, "a"), *saved(2, "b")]
    return Trace((InitialFile("old", "dir", 99, 0o755),), tuple(events), tmp_path / "data.bin")


def finished(trace, number):
    return Points(trace, trace, [trace, trace], trace.saves()[number]).finished()


def test_a_save_is_finished_before_anything_of_the_next_has_happened(trace):
    state = finished(trace, 0)
    assert sorted(state.tree) == ["a", "old"]
    assert state.owed == ("a",)
    assert state.done == tuple(range(7))
    assert state.faults == ("sigkill all ranks at step 2",)
    assert sorted(finished(trace, 1).tree) == ["a", "b", "old"]


def test_where_no_step_was_logged_the_kill_comes_before_the_next_operation(trace):
    quiet = replace(trace, events=tuple(event for event in trace.events if not isinstance(event, Mark) or event.what == "save"))
    state = finished(quiet, 0)
    assert state.faults == ("sigkill all ranks before open b.tmp by rank 0",)
    assert sorted(state.tree) == ["a", "old"]
