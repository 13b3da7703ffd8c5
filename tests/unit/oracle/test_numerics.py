from __future__ import annotations

import pytest
from histories import STEPS, attempt, baseline, killed_and_resumed, kinds, only, row, run_of, scenario

from harness.oracle.numerics import numerics

FAULT = "overflow rank 0 at batch 14"


def case(tmp_path, fault=FAULT, skips=None, scaled=True):
    how = {"path": tmp_path, "skips": {14: "non_finite_grad"} if skips is None else skips, "scaled": scaled}
    first, second = attempt(0, 1, 15, **how), attempt(1, 13, STEPS, resumed=12, ended=True, **how)
    return run_of(first, second, case=scenario(faults=(fault,))), baseline(skips=how["skips"], scaled=scaled)


@pytest.mark.parametrize("fault", [FAULT, "nan all ranks at batch 14", "nonfinite-grad rank 1 at batch 14"])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_skipped_batch_passes(tmp_path, fault, scaled):
    assert numerics(*case(tmp_path, fault, scaled=scaled)) == []


def test_several_in_a_row_halve_the_scale_each_time(tmp_path):
    skips = dict.fromkeys((14, 15, 16), "non_finite_loss")
    assert numerics(*case(tmp_path, "overflow rank 0 at batch 14 times 3", skips)) == []


def test_a_bad_first_batch_is_skipped_at_step_0(tmp_path):
    assert numerics(*case(tmp_path, "nan rank 0 at batch 1", {1: "non_finite_loss"})) == []


def test_a_bad_batch_that_was_not_skipped_shows_in_the_uninterrupted_run_first(tmp_path):
    found = numerics(*case(tmp_path, skips={}))
    assert kinds(found) == ["numerics"] * 6
    assert found[0].message == "batch 14 of rank 0 ('overflow rank 0 at batch 14') in the uninterrupted run was not skipped"
    assert (found[0].component, found[0].attempt) == ("gradients", None)


def test_a_skip_that_completes_a_step(tmp_path):
    run, golden = case(tmp_path)
    row(run, 1, 1, 14)["step"] = 14
    finding = only(numerics(run, golden), "numerics")
    assert finding.message.endswith("in attempt 1 was skipped, yet the step went from 13 to 14")
    assert (finding.rank, finding.component) == (1, "counters")


def test_right_behind_a_resume_the_uninterrupted_run_knows_the_step_before(tmp_path):
    skips = {13: "non_finite_grad"}
    run, golden = case(tmp_path, "nan rank 0 at batch 13", skips)
    assert numerics(run, golden) == []
    row(run, 1, 0, 13)["step"] = 13
    assert "yet the step went from 12 to 13" in only(numerics(run, golden), "numerics").message


@pytest.mark.parametrize(("scale", "found"), [((4096.0).hex(), "4096"), (None, "none")])
def test_a_scale_that_is_not_halved(tmp_path, scale, found):
    run, golden = case(tmp_path)
    row(run, 1, 0, 15)["scale"] = scale
    finding = only(numerics(run, golden), "numerics")
    assert finding.message.endswith(f"was skipped at loss scale 4096, yet the next batch used {found}; expected 2048")
    assert finding.component == "scaler"


def test_a_parameter_that_is_not_finite_always_counts():
    run = killed_and_resumed()
    for batch in (20, 21):
        row(run, 1, 1, batch)["parameters_finite"] = False
    finding = only(numerics(run, baseline()), "numerics")
    assert (finding.component, finding.rank, finding.step) == ("model", 1, 20)


def test_a_spike_need_not_be_skipped(tmp_path):
    assert numerics(*case(tmp_path, "spike rank 0 at batch 14", {})) == []


def test_a_fault_of_a_rank_that_this_launch_does_not_have_hits_nothing(tmp_path):
    fault = "nan rank 1 at batch 14"
    second = attempt(1, 13, STEPS, path=tmp_path, ranks=1, resumed=12, ended=True)
    run = run_of(attempt(0, 1, 13, path=tmp_path), second, case=scenario(faults=(fault,), ranks=(2, 1)))
    assert numerics(run, baseline(skips={14: "non_finite_loss"})) == []


def test_an_unplanned_skip_is_healthy_until_there_are_too_many():
    one, two = {3: "non_finite_grad"}, {3: "non_finite_grad", 4: "non_finite_grad"}
    assert numerics(killed_and_resumed(), baseline(skips=one)) == []
    finding = only(numerics(killed_and_resumed(), baseline(skips=two)), "numerics")
    assert finding.message == "2 of 24 batches of the uninterrupted run were skipped that no fault had hit; expected at most 5%"


def test_a_loss_scale_that_comes_down_at_the_start_is_healthy(tmp_path):
    how = {"skips": dict.fromkeys((1, 2, 4), "non_finite_grad"), "scaled": True}
    first = attempt(0, 1, 15, path=tmp_path, **how)
    second = attempt(1, 13, STEPS, path=tmp_path, resumed=12, ended=True, **how)
    assert numerics(run_of(first, second), baseline(**how)) == []


def test_a_loss_scale_that_comes_down_all_the_time_is_not():
    skips = dict.fromkeys(range(1, 9), "non_finite_grad")
    finding = only(numerics(killed_and_resumed(), baseline(skips=skips, scaled=True)), "numerics")
    assert finding.message.startswith("3 of 24 batches of the uninterrupted run were skipped that no fault had hit")


def test_skips_behind_a_growth_of_the_scale_are_not_of_the_start():
    golden = baseline(skips=dict.fromkeys((1, 6, 7), "non_finite_grad"), scaled=True)
    for rank in golden.ranks:
        for record in golden.ranks[rank].records:
            if record["event"] == "batch" and record["batch"] in (4, 5, 6):
                record["scale"] = (8192.0).hex()
    assert "2 of 24" in only(numerics(killed_and_resumed(), golden), "numerics").message


def test_no_rank_at_all_is_left_to_the_control(tmp_path):
    golden = baseline()
    golden.ranks.clear()
    assert numerics(run_of(), golden) == []


@pytest.mark.parametrize(
    ("grad_norm", "stepped", "good"),
    [(0.5, 0.5, True), (8.0, 1.0, True), (8.0, 8.0, False), (0.5, 0.4, False), (8.0, 1.0005, True), (8.0, float("nan"), False)],
)
def test_what_reaches_the_optimizer_is_what_the_trainer_says(grad_norm, stepped, good):
    run = killed_and_resumed()
    said = {"grad_norm": grad_norm.hex(), "max_norm": (1.0).hex(), "stepped_norm": "nan" if stepped != stepped else stepped.hex()}
    row(run, 1, 1, 20).update(said)
    found = numerics(run, baseline())
    if good:
        assert found == []
        return
    finding = only(found, "numerics")
    assert (finding.component, finding.rank, finding.step, finding.attempt) == ("gradients", 1, 20, 1)


def test_a_log_that_does_not_say_what_reached_the_optimizer_is_not_held_against_anyone():
    run = killed_and_resumed()
    row(run, 1, 1, 20).update({"grad_norm": (8.0).hex(), "max_norm": (1.0).hex(), "stepped_norm": None})
    assert numerics(run, baseline()) == []


@pytest.mark.parametrize(("advance", "found"), [(0, []), (1, ["scheduler"])])
def test_a_schedule_of_updates_does_not_count_a_skip(tmp_path, advance, found):
    run, golden = case(tmp_path, scaled=False)
    for log in golden.ranks.values():
        records, count = [], 0.0
        for record in log.records:
            records.append(record)
            if record["event"] == "batch":
                count += advance if record["tag"] == "SKIP" else 1
                values = {"scheduler.0.last_epoch": count}
                records.append({"event": "state", "rank": log.rank, "moment": "next", "digests": {}, "values": values})
        log.records[:] = records
    assert [one.component for one in numerics(run, golden)] == found * 2
