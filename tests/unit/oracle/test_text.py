from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from histories import baseline, digest, killed_and_resumed, row, said

from harness.judge import judge
from harness.oracle.finding import fail, inconclusive
from harness.oracle.verdict import FiredFault, Verdict
from harness.report.text import render

DIRECTORY = Path("runs/case")
TORN = "sigkill rank 1 during write rank1.bin.tmp at 50%"


def diverged(**where):
    message = "loss differs at step 13, the first step after the resume (9 of 11 differ)"
    values = {"expected": "0x1.8f3c2p+1", "found": "0x1.8f3c6p+1", **where}
    return fail("diverged", "loss", message, step=13, rank=1, attempt=1, **values)


def lost(component="rng.python", rank=1, before="9ac1" + "0" * 60, after="51e0" + "0" * 60, where="before the save"):
    message = f"{component} of rank {rank} after the load of step-00000012 (attempt 1) is not what it was {where}"
    return fail("state-lost", "state", message, component=component, rank=rank, attempt=1, step=12, expected=before, found=after)


def verdict(*findings, outcome="FAIL", **how):
    fired = (FiredFault(TORN, 0, 1, 12),)
    return Verdict("case", TORN, outcome, findings, **{"fired": fired, "resumed_from": (12,), "lost_steps": (0,), **how})


def test_the_text_has_the_shape_of_the_design():
    difference = float.fromhex("0x1.8f3c6p+1") - float.fromhex("0x1.8f3c2p+1")
    assert difference < 1e-4  # the design's own figures are made up; the shape is what is compared
    found = diverged(found="0x1.8fa1ep+1")
    assert render(verdict(found, lost()), DIRECTORY) == (
        "FAIL diverged: loss differs at step 13, the first step after the resume (9 of 11 differ)\n"
        "  uninterrupted 0x1.8f3c2p+1   resumed 0x1.8fa1ep+1   |diff| 3.1e-03 > 1e-04\n"
        "  lost: rng.python (digest 9ac1… before the save, 51e0… after the load), rank 1\n"
        "  fault: sigkill rank 1 during write rank1.bin.tmp at 50%, attempt 0, step 12\n"
        "  repeat: harness replay runs/case/plan.toml"
    )


def test_the_whole_way_from_records_to_text():
    run = killed_and_resumed()
    said(run, 1, 1, "state", moment="load")["digests"]["rng.python"] = "51e0" + "0" * 60
    for batch in (13, 20):
        row(run, 1, 1, batch)["loss"] = (float.fromhex(row(run, 1, 1, batch)["loss"]) + 2**-8).hex()
    assert render(judge(run, baseline()), DIRECTORY) == (
        "FAIL diverged: loss differs at step 13, the first step after the resume (2 of 12 differ)\n"
        "  uninterrupted 0x1.4dp+1   resumed 0x1.4d8p+1   |diff| 3.9e-03 > 1e-04\n"
        f"  lost: rng.python (digest {digest('rng.python', 1, 12)[:4]}… before the save, 51e0… after the load), rank 1\n"
        "  diagnosis: The rng.python of rank 1 went wrong; it shows as diverged at step 13, in attempt 1. It was "
        "right just before the save of step-00000012.pt and wrong just after its load. The nearest fault: sigkill rank 1 at step "
        "14, rank 1, attempt 0, step 14. Look into step-00000012.pt. Not known: whether the file lacks it or the load does not "
        "restore it, since nobody else has read the file; why: no known pattern fits.\n"
        "  fault: sigkill rank 1 at step 14, attempt 0\n"
        "  repeat: harness replay runs/case/plan.toml"
    )


def test_ranks_that_lost_the_same_component_share_a_line():
    text = render(verdict(diverged(), lost("data", 0), lost("model", 0), lost("data", 1)), DIRECTORY)
    assert "  lost: data (digest 9ac1… before the save, 51e0… after the load), ranks 0, 1\n" in text
    assert text.count("lost:") == 2


def test_many_lost_components_are_not_all_listed():
    components = ["model", "buffers", "optimizer", "scheduler", "scaler", "rng.a", "rng.b", "data"]
    text = render(verdict(diverged(), *(lost(component) for component in components)), DIRECTORY)
    assert text.count("  lost: ") == 7
    assert "lost: 2 more components" in text


def test_state_that_is_lost_without_a_difference_of_the_loss():
    text = render(verdict(lost(after="absent"), lost("model", where="in the uninterrupted run")), DIRECTORY)
    assert text.splitlines()[:3] == [
        "FAIL state-lost: rng.python of rank 1 after the load of step-00000012 (attempt 1) is not what it was before the save",
        "  lost: rng.python (digest 9ac1… before the save, absent after the load), rank 1",
        "  lost: model (digest 9ac1… in the uninterrupted run, 51e0… after the load), rank 1",
    ]


def test_values_that_are_no_numbers():
    assert "  uninterrupted nan   resumed nan   |diff| nan, which equals nothing\n" in render(
        verdict(diverged(expected="nan", found="nan")), DIRECTORY
    )
    assert "  uninterrupted 0x1p+0   resumed inf   |diff| inf > 1e-04\n" in render(
        verdict(diverged(expected="0x1p+0", found="inf")), DIRECTORY
    )
    assert "  uninterrupted STEP, step 13   resumed SKIP x, step 12\n" in render(
        verdict(diverged(expected="STEP, step 13", found="SKIP x, step 12")), DIRECTORY
    )


def test_a_difference_just_above_the_tolerance_does_not_look_equal_to_it():
    found = float.hex(1.0 + 1.0000001e-4)
    assert "|diff| 0.000100000" in render(verdict(diverged(expected="0x1p+0", found=found)), DIRECTORY)
    exact = verdict(diverged(), tolerance=0.0)
    assert " > 0\n" in render(exact, DIRECTORY)
    assert " > 2.5e-06\n" in render(replace(exact, tolerance=2.5e-6), DIRECTORY)


def test_other_failures_show_expected_and_found_and_what_else_there_is():
    root = fail("lost-work", "progress", "attempt 1 resumed from a", expected="resume from b", found="resumed from a", attempt=1)
    more = fail("leak", "hygiene", "1 processes outlived attempt 0: x (pid 7)")
    text = render(verdict(root, more, replace(more, message="another")), DIRECTORY)
    assert text == (
        "FAIL lost-work: attempt 1 resumed from a\n"
        "  expected resume from b   found resumed from a\n"
        "  also: leak: 1 processes outlived attempt 0: x (pid 7)\n"
        "  fault: sigkill rank 1 during write rank1.bin.tmp at 50%, attempt 0, step 12\n"
        "  repeat: harness replay runs/case/plan.toml"
    )


def test_where_a_fault_fired_is_said_once():
    faults = (
        FiredFault("sigkill any rank before fsync *.tmp attempt 1", 1, 0, 8),
        FiredFault("quota 5000 bytes", 0, 0, None),
        FiredFault("flip newest at 50%", 1, None, None),
        FiredFault("overflow rank 0 at batch 5", None, None, None),
        FiredFault("words of another version", 0, 1, 3),
    )
    lines = render(verdict(diverged(), fired=faults), DIRECTORY).splitlines()
    assert [line for line in lines if "fault:" in line] == [
        "  fault: sigkill any rank before fsync *.tmp attempt 1, rank 0, step 8",
        "  fault: quota 5000 bytes, rank 0, attempt 0",
        "  fault: flip newest at 50%, attempt 1",
        "  fault: overflow rank 0 at batch 5, in every attempt",
        "  fault: words of another version, rank 1, attempt 0, step 3",
    ]


def test_inconclusive_says_the_reason_and_the_next_command():
    root = inconclusive("foreign-death", "fired", "rank 1 was killed by SIGKILL in attempt 1, which the harness did not send")
    assert render(verdict(root, outcome="INCONCLUSIVE", fired=()), DIRECTORY) == (
        "INCONCLUSIVE foreign-death: rank 1 was killed by SIGKILL in attempt 1, which the harness did not send\n"
        "  fault: none fired\n"
        "  next: look for the out-of-memory killer (`dmesg`), run fewer cases at once, then run this one again\n"
        "  repeat: harness replay runs/case/plan.toml"
    )


def test_a_pass_says_what_was_resumed_what_was_lost_and_how_near_it_came():
    passed = verdict(outcome="PASS", lost_steps=(2,), max_loss_diff=0.0)
    assert render(passed, DIRECTORY) == "PASS case: resumed from step 12, lost 2 steps, max |diff| 0, bit-equal"
    one = replace(passed, lost_steps=(1,), max_loss_diff=2**-20)
    assert render(one, DIRECTORY) == (
        "PASS case: resumed from step 12, lost 1 step, max |diff| 9.5e-07 (tolerance 1e-04), "
        "not bit-equal although the number of ranks is the same"
    )
    other = replace(one, same_world_size=False)
    assert render(other, DIRECTORY).endswith("max |diff| 9.5e-07 (tolerance 1e-04)")
    twice = replace(passed, resumed_from=(12, 16), lost_steps=(2, 1))
    assert render(twice, DIRECTORY).startswith("PASS case: resumed from step 12, then 16, lost 2, then 1 steps, ")
    plain = replace(passed, resumed_from=(), lost_steps=(), max_loss_diff=None)
    assert render(plain, DIRECTORY) == "PASS case: no resume, no loss was compared"
    refused = replace(plain, expect="refuses")
    assert render(refused, DIRECTORY) == "PASS case: no resume, refused as it was to, nothing changed, no loss was compared"


def test_every_reason_has_a_next_step():
    from harness.oracle.finding import INCONCLUSIVE_REASONS

    for reason in INCONCLUSIVE_REASONS:
        text = render(verdict(inconclusive(reason, "x", "y"), outcome="INCONCLUSIVE", max_loss_diff=math.nan), DIRECTORY)
        assert "\n  next: " in text
