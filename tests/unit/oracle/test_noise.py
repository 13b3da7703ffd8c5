from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from histories import KILL, STEPS, attempt, baseline, fired, kinds, loss_of, rank_log, run_of, scenario

from harness.errors import UsageError
from harness.judge import judge
from harness.oracle.loss import loss
from harness.oracle.noise import FACTOR, allowed, curve, places
from harness.plan import make_plan, read_plan, write_plan
from harness.report.text import render
from harness.scenario import Command, Scenario, job
from harness.store import Baseline, Run

FLIP = 3e-7  # what a flipped bit makes at once


def flipped(growth: float = 1.0, first: float = FLIP, after: int = 12, ranks: int = 2) -> Baseline:
    """A baseline with one more run, in which losses differ after a batch by `first`, then `growth` times as much after each."""
    logs = {rank: rank_log(rank, 1, STEPS, ended=True) for rank in range(ranks)}
    for log in logs.values():
        for record in log.of("batch"):
            if record["batch"] > after:
                record["global_loss"] = (loss_of(record["batch"]) + first * growth ** (record["batch"] - after - 1)).hex()
    return replace(baseline(ranks), flipped={after: logs})


def resumed_on(ranks: int, error: float, tolerance: object = "auto") -> Run:
    """Killed at step 14 on two ranks, resumed from step 12 on some; each loss from there on is off by `error`."""
    path = Path("runs/case")
    first = attempt(0, 1, 14, path=path, supervisor=(fired(KILL, step=14),))
    second = attempt(1, 13, STEPS, path=path, ranks=ranks, resumed=12, ended=True, before=(4, 8, 12))
    for log in second.ranks.values():
        for record in log.of("batch"):
            record["global_loss"] = (loss_of(record["batch"]) + error).hex()
    return run_of(first, second, case=scenario(ranks=(2, ranks), tolerance=tolerance, reshard=True))


def judged(run: Run, golden: Baseline):
    return judge(run, golden, oracles=(loss,))


def test_a_healthy_change_of_the_number_of_ranks_passes():
    verdict = judged(resumed_on(1, 2e-6), flipped())
    assert verdict.outcome == "PASS"
    assert verdict.noise is not None
    assert (verdict.noise.after, verdict.noise.is_chaotic) == (12, False)
    assert "the largest difference is 6.7× what it makes" in render(verdict, Path("runs/case"))
    assert "(tolerance auto)" in render(verdict, Path("runs/case"))


def test_an_error_that_the_fixed_tolerance_misses_is_caught():
    assert judged(resumed_on(1, 2e-5, 1e-4), flipped()).outcome == "PASS"
    verdict = judged(resumed_on(1, 2e-5), flipped())
    assert (verdict.outcome, verdict.kind) == ("FAIL", "diverged")
    text = render(verdict, Path("runs/case"))
    assert "|diff| 2.0e-05 > 4.947185516357422e-06" in text  # 16 times the noise
    assert "the largest difference is 66.7× what it makes" in text
    assert verdict.to_json()["noise"]["times"] == pytest.approx(66.7, rel=5e-2)


def test_where_a_little_makes_a_lot_more_is_allowed_and_that_is_said():
    golden = flipped(growth=3.0)
    run = resumed_on(1, 0.0)
    most = allowed(run, golden, run.attempts[1])
    assert most(13) == pytest.approx(FACTOR * FLIP, rel=5e-2)
    assert most(24) == pytest.approx(FACTOR * FLIP * 3.0**11, rel=1e-2)
    verdict = judged(resumed_on(1, 3e-6), golden)
    assert verdict.outcome == "PASS"
    assert "the job is chaotic" in render(verdict, Path("runs/case"))
    assert verdict.to_json()["noise"]["chaotic"] is True


def test_on_one_number_of_ranks_no_more_is_allowed_than_ever():
    golden, run = flipped(growth=3.0), resumed_on(2, 0.0)
    most = allowed(run, golden, run.attempts[1])
    assert most(24) == 1e-4
    assert most(13) < 1e-4


def test_noise_is_at_least_what_a_float32_resolves_and_never_falls():
    values = curve(flipped(first=0.0), 12)
    assert set(values) == set(range(13, STEPS + 1))
    assert values[13] == pytest.approx(2**-23 * loss_of(13))
    falling = list(curve(flipped(growth=0.5, first=1e-3), 12).values())
    assert falling == sorted(falling)
    assert curve(baseline(), 12) == {}


def test_without_a_measurement_nothing_passes():
    verdict = judged(resumed_on(1, 0.0), baseline())
    assert (verdict.outcome, verdict.kind, verdict.noise) == ("INCONCLUSIVE", "not-comparable", None)
    assert "no run with bits flipped after batch 12 was stored" in verdict.findings[0].message


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_noise_without_bound_is_no_measure(value):
    golden = flipped()
    golden.flipped[12][0].of("batch", batch=20)[0]["global_loss"] = value
    verdict = judged(resumed_on(1, 0.0), golden)
    assert (verdict.outcome, kinds(list(verdict.findings))) == ("INCONCLUSIVE", ["not-comparable"])
    assert judged(resumed_on(1, 1e-3), golden).outcome == "FAIL"
    assert not math.isfinite(max(curve(golden, 12).values()))


def test_where_bits_are_flipped():
    assert places(resumed_on(1, 0.0)) == (12,)
    assert places(run_of(attempt(0, 1, STEPS, path=Path("runs/case"), ended=True), case=scenario(faults=()))) == ()


def test_the_replay_file_keeps_the_word(tmp_path):
    asked = job("sharded", ranks=(4, 2), tolerance="auto", reshard=True, precision="bf16", rng_scope="global")
    write_plan(make_plan(asked), tmp_path / "plan.toml")
    assert read_plan(tmp_path / "plan.toml").scenario == asked
    assert 'tolerance = "auto"' in (tmp_path / "plan.toml").read_text()


def test_a_command_must_be_watched_from_inside():
    silent = Command(command=("python", "train.py"), loss_log="-", loss_regex="(?P<step>.)(?P<loss>.)")
    with pytest.raises(UsageError, match="auto changes the last bit of the weights from inside"):
        Scenario.build({"workload": silent, "tolerance": "auto"})
    with pytest.raises(UsageError, match=r"tolerance: input should be a valid number.*'much'"):
        job("single", tolerance="much")
    assert Scenario.build(
        {"workload": silent.model_copy(update={"probe": True, "loss_log": None, "loss_regex": None}), "tolerance": "auto"}
    )
