from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from harness import bench, symptoms
from harness.errors import LaunchError
from harness.reference.defects import DEFECTS


def found(kind: str, component: str) -> SimpleNamespace:
    outcome = "FAIL" if kind else "PASS"
    return SimpleNamespace(
        outcome=outcome, kind=kind, component=component, fired=(), root=object() if kind else None, findings=()
    )


@pytest.fixture
def verdicts(monkeypatch, tmp_path):
    """Verdicts by scenario name, in place of running anything; by default what is planted is named, what is healthy green."""
    chosen: dict[str, SimpleNamespace] = {}
    overs = {symptoms.over_ranks(*split, name).name: name for split in symptoms.OVER_RANKS_IN for name in symptoms.OVER_RANKS}

    def run_case(scenario, _):
        directory = tmp_path / "run"
        directory.mkdir(exist_ok=True)
        name = overs.get(scenario.name, scenario.name.removeprefix("planted-"))
        planted = DEFECTS[name] if scenario.name.startswith("planted-") or scenario.name in overs else None
        usual = found(planted.kind, planted.component) if planted else found("", "")
        verdict = chosen.get(scenario.name, usual)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict, SimpleNamespace(path=directory)

    monkeypatch.setattr(bench, "run_case", run_case)
    session = SimpleNamespace(warm=lambda: None, close=lambda: None)
    monkeypatch.setattr(bench, "Session", SimpleNamespace(new=lambda: session))
    return chosen


def test_a_judge_that_is_right_has_perfect_rates(verdicts):
    said: list[str] = []
    rates = bench.defect_rates(False, said.append, jobs=1)["defects"]
    assert rates["planted"] == rates["detected"] == rates["named"] == len(DEFECTS) + 15
    assert (rates["healthy"], rates["false_alarms"]) == (len(DEFECTS) + len(symptoms.healthy()) + 5, 0)
    total = rates["planted"] + rates["healthy"]
    assert said[0] == f"{rates['planted']} planted defects, {rates['healthy']} healthy jobs"
    assert [line.split(" cases")[0] for line in said[1:]] == [f"{done} of {total}" for done in range(25, total + 1, 25)]


def test_what_is_missed_misnamed_or_a_false_alarm_is_counted_and_said(verdicts):
    right = bench.defect_rates(False, lambda _: None, jobs=1)["defects"]
    verdicts["planted-no-optimizer"] = found("", "")
    verdicts["planted-no-scheduler"] = found("diverged", "model")
    verdicts["healthy-no-optimizer"] = found("state-lost", "optimizer")
    said: list[str] = []
    wrong = bench.defect_rates(False, said.append, jobs=1)["defects"]
    assert {name: wrong[name] - right[name] for name in right} == {
        "planted": 0,
        "detected": -1,
        "named": -2,
        "healthy": 0,
        "false_alarms": 1,
    }
    told = [line for line in said if "expected" in line]
    assert [line.split(":")[0] for line in told] == ["planted-no-optimizer", "planted-no-scheduler", "healthy-no-optimizer"]


def test_a_case_that_cannot_be_judged_counts_against_it_and_ends_nothing(verdicts):
    verdicts["planted-no-optimizer"] = verdicts["healthy-no-optimizer"] = LaunchError("it was still running after 90 s")
    said: list[str] = []
    rates = bench.defect_rates(False, said.append, jobs=1)["defects"]
    assert (rates["detected"], rates["named"]) == (rates["planted"] - 1, rates["planted"] - 1)
    assert rates["false_alarms"] == 1
    told = [line for line in said if "expected" in line]
    assert told == [
        f"{name}: expected {expected}, found no verdict: it was still running after 90 s"
        for name, expected in (("planted-no-optimizer", "diverged of optimizer"), ("healthy-no-optimizer", "PASS"))
    ]


def test_ratios_of_saves_are_taken_round_by_round(monkeypatch, tmp_path):
    seen = {"state_bytes": 2e6, "sharded_s": [2.0, 9.0, 3.0], "plain_s": [1.0, 9.0, 2.0]}
    seen |= {"async_blocked_s": [1.0, 1.0, 1.0], "dcp_s": [10.0, 2.0, 4.0]}
    monkeypatch.setattr(bench, "_output", lambda *_: json.dumps(seen))
    assert bench.save_costs(tmp_path, 896) == {
        "save_state_mb": 2.0,
        "save_sharded_s": 3.0,
        "save_plain_s": 2.0,
        "sharded_over_plain_write": 1.5,
        "sharded_over_plain_write_range": [1.0, 2.0],
        "async_blocked_s": 1.0,
        "async_block_over_sync": 0.25,
        "async_block_over_sync_range": [0.1, 0.5],
    }
