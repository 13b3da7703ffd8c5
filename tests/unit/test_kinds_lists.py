"""The lists of planted kinds as data: what is wrong with one is said, and a healthy twin is made of the same words."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.kinds import read_kinds
from harness.oracle.finding import COMPONENTS, FAIL_KINDS
from harness.oracle.verdict import Verdict

KINDS = Path(__file__).resolve().parents[1] / "quality" / "kinds"
LIST = """
kind = "K01"
title = "one"

[[trainer]]
name = "lost"
script = "train.py"
arguments = ["--out", "{ckpt}", "--lose"]
healthy = ["--out", "{ckpt}"]
control = ["--out", "{ckpt}", "--no-save"]
ranks = [2, 1]
faults = ["sigkill all ranks at step 5"]
healthy_faults = []
expect = ["state-lost model"]
rows = ["B001"]
"""


def listed(folder, text=LIST):
    (folder / "K01").mkdir()
    (folder / "K01" / "kinds.toml").write_text(text)
    return read_kinds(folder)


def test_a_planted_case_and_its_twin(tmp_path):
    planted, healthy = listed(tmp_path)
    assert (planted.name, healthy.name) == ("lost", "lost-healthy")
    assert planted.scenario.faults == ("sigkill all ranks at step 5",)
    assert healthy.scenario.faults == ()
    assert planted.scenario.workload.command[-1] == "--lose"
    assert healthy.scenario.workload.command[-1] == "{ckpt}"
    assert planted.scenario.compare_with == healthy.scenario.compare_with == "control"
    assert planted.scenario.workload.control_command[-1] == "--no-save"
    assert (planted.expect, planted.rows, healthy.expect, healthy.rows) == (("state-lost model",), ("B001",), (), ())


@pytest.mark.parametrize(
    ("kind", "component", "detected", "named"),
    [("state-lost", "model", True, True), ("state-lost", "optimizer", True, False), (None, "none", False, False)],
)
def test_detected_is_red_and_named_is_kind_and_component(tmp_path, kind, component, detected, named):
    planted, _ = listed(tmp_path)

    class Said(Verdict):
        kind = property(lambda _: self_kind)

    self_kind = kind
    verdict = Said("case", "none", "FAIL" if kind else "PASS", component=component)
    assert (planted.detected(verdict), planted.named(verdict)) == (detected, named)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind = ", "is no TOML"),
        (LIST.replace('kind = "K01"', 'kind = "K1"'), "kind: string should match"),
        (LIST.replace("faults", "falts", 1), "trainer.0.falts: extra inputs"),
        (LIST.replace("sigkill all", "sigkil all"), "sigkil"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(tmp_path, text, problem):
    with pytest.raises(UsageError, match=problem):
        listed(tmp_path, text)


def test_without_a_list_there_is_nothing_to_run(tmp_path):
    with pytest.raises(UsageError, match="expected a checkout of the project"):
        read_kinds(tmp_path)


def test_every_kind_has_two_defects_of_different_shape_and_a_healthy_trainer():
    cases = read_kinds(KINDS)
    planted = [case for case in cases if case.expect]
    kinds = {case.kind for case in cases}
    assert kinds == {f"K{number:02}" for number in range(26)}
    for kind in kinds:
        assert len({case.scenario.workload.command[1:] for case in planted if case.kind == kind}) >= 2, kind
        assert any(case.kind == kind and not case.expect for case in cases), kind
    assert len(cases) - len(planted) >= 60
    assert len({row for case in planted for row in case.rows}) >= 40


def test_what_is_expected_is_said_in_the_words_of_verdicts():
    for case in read_kinds(KINDS):
        for text in case.expect:
            kind, _, component = text.partition(" ")
            assert kind in FAIL_KINDS, case.name
            assert component in COMPONENTS, case.name
