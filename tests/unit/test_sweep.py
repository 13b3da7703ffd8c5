"""What a sweep says of its cases: grouped by what was done to which files, and never PASS for nothing."""

from __future__ import annotations

from pathlib import Path

from harness.damages import Damage
from harness.oracle.finding import fail, inconclusive
from harness.oracle.verdict import Verdict, decide
from harness.scenario import job
from harness.sweep import Sweep, Swept, find_damage_causes

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
