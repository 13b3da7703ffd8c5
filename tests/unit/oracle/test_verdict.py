from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest

from harness.oracle.finding import COMPONENTS, FAIL_KINDS, INCONCLUSIVE_REASONS, fail, inconclusive
from harness.oracle.verdict import Verdict, decide, public_component


def root_of(*findings):
    """The root must not depend on the order in which the oracles were asked."""
    roots = {decide(order)[1][0] for order in itertools.permutations(findings)}
    assert len(roots) == 1
    return roots.pop()


def test_nothing_found_is_a_pass():
    assert decide([]) == ("PASS", (), "none")


def test_the_worst_wins():
    loud, unsure = fail("leak", "hygiene", "x"), inconclusive("fault-did-not-fire", "fired", "y")
    assert decide([unsure])[0] == "INCONCLUSIVE"
    assert decide([unsure, loud])[0] == decide([loud, unsure])[0] == "FAIL"
    assert root_of(unsure, loud) is loud


@pytest.mark.parametrize("kind", FAIL_KINDS)
@pytest.mark.parametrize("reason", INCONCLUSIVE_REASONS)
def test_every_word_can_be_weighed(kind, reason):
    outcome = decide([inconclusive(reason, "x", "y"), fail(kind, "x", "y")])[0]
    assert outcome == ("INCONCLUSIVE" if reason == "baseline-unstable" else "FAIL")


def test_a_baseline_that_differs_from_itself_is_never_a_fail():
    outcome, findings, _ = decide([fail("hang", "liveness", "x"), inconclusive("baseline-unstable", "control", "y")])
    assert outcome == "INCONCLUSIVE"
    assert [finding.kind for finding in findings] == ["baseline-unstable", "hang"]


@pytest.mark.parametrize(
    ("root", "consequence"),
    [
        (("diverged", 1), ("state-lost", 1)),
        (("corrupt-accepted", 1), ("diverged", 1)),
        (("restarted-from-scratch", 1), ("last-good-lost", 1)),
        (("last-good-lost", 0), ("restarted-from-scratch", 1)),
        (("last-good-lost", 0), ("resume-crashed", 1)),
        (("lost-work", 1), ("diverged", 1)),
        (("resume-crashed", 2), ("diverged", 1)),
        (("numerics", None), ("diverged", 0)),
        (("diverged", 1), ("numerics", 1)),
        (("data-skipped", 1), ("diverged", 1)),
        (("silent-exit", 1), ("retention", 0)),
        (("resume-crashed", 1), ("hang", 1)),
        (("state-lost", 1), ("leak", 0)),
        (("hang", 0), ("resume-crashed", 1)),
    ],
)
def test_the_root_is_what_explains_the_others(root, consequence):
    first, second = (fail(kind, "x", "y", attempt=attempt) for kind, attempt in (root, consequence))
    assert root_of(second, first) is first


def test_among_reasons_the_one_that_explains_the_others_is_named():
    reasons = [inconclusive(reason, "x", "y") for reason in ("fault-did-not-fire", "not-comparable", "foreign-death")]
    assert root_of(*reasons).kind == "foreign-death"


def test_a_divergence_takes_its_component_from_the_state_that_was_lost():
    lost = fail("state-lost", "state", "x", component="rng.python", attempt=1)
    later = fail("state-lost", "state", "x", component="model", attempt=2)
    diverged = fail("diverged", "loss", "x", attempt=1)
    outcome, findings, component = decide([later, lost, diverged])
    assert (outcome, findings[0], component) == ("FAIL", diverged, "rng.python")
    assert decide([diverged])[2] == "none"


def test_wrong_samples_are_no_matter_of_what_was_wrong_later():
    late = fail("state-lost", "state", "x", component="optimizer", attempt=1, late=True)
    samples = fail("diverged", "data", "x", component="data", attempt=1)
    assert decide([late, samples])[2] == "data"
    assert decide([late, fail("diverged", "loss", "x", attempt=1)])[2] == "optimizer"
    assert decide([replace(late, component="rng.torch", late=False), samples])[2] == "rng.torch"


def test_an_epoch_done_twice_is_the_cause_of_more_batches_than_planned_and_of_all_numbers_behind():
    late = fail("state-lost", "state", "x", component="optimizer", attempt=1, late=True)
    more = fail("diverged", "loss", "batches 33-37 were done", component="counters", attempt=1)
    again = fail("data-repeated", "data", "x", component="data", attempt=1)
    assert decide([more, late, again])[1][0] is again
    assert decide([more, late])[2] == "counters"
    assert decide([more, fail("state-lost", "state", "x", component="scheduler", attempt=1)])[2] == "scheduler"


def test_state_that_was_lost_after_the_divergence_did_not_cause_it():
    diverged, later = fail("diverged", "loss", "x", attempt=1), fail("state-lost", "state", "x", component="model", attempt=2)
    assert decide([diverged, later])[2] == "none"


def test_what_was_wrong_at_the_load_is_named_before_what_was_wrong_later():
    felt, late = fail("diverged", "loss", "x", attempt=1), fail("state-lost", "state", "x", component="model", late=True)
    assert decide([felt, late, fail("state-lost", "state", "x", component="scheduler")])[2] == "scheduler"


def test_other_kinds_keep_their_own_component():
    lost = fail("state-lost", "state", "x", component="rng.python", attempt=1)
    assert decide([lost, fail("hang", "liveness", "x", component="process", attempt=1)])[2] == "process"


def test_json_is_the_entry_of_the_contract():
    root = fail("diverged", "loss", "x", step=13, rank=1, file="a.pt", attempt=1)
    verdict = Verdict(
        "case", "none", "FAIL", (root,), "rng.python", (), 2**-8, 1e-4, True, (12, 16), (2, 3), "runs/case/plan.toml", 1.5
    )
    assert verdict.to_json() == {
        "id": "case",
        "fault": "none",
        "verdict": "FAIL",
        "kind": "diverged",
        "component": "rng",
        "step": 13,
        "rank": 1,
        "file": "a.pt",
        "max_loss_diff": 2**-8,
        "resumed_from": 12,
        "lost_steps": 3,
        "replay": "runs/case/plan.toml",
        "duration_s": 1.5,
        "noise": None,
        "unfelt": [],
        "diagnosis": None,
    }
    json.dumps(verdict.to_json(), allow_nan=False)


def test_json_of_a_pass_and_of_what_is_no_number():
    entry = Verdict("case", "none", "PASS", max_loss_diff=0.0).to_json()
    assert (entry["verdict"], entry["kind"], entry["component"], entry["max_loss_diff"]) == ("PASS", None, "none", 0.0)
    assert (entry["step"], entry["rank"], entry["file"], entry["resumed_from"], entry["lost_steps"]) == (None,) * 5
    assert Verdict("case", "none", "PASS", max_loss_diff=math.nan).to_json()["max_loss_diff"] is None


def test_components_are_those_of_the_contract():
    assert public_component("rng.torch") == "rng"
    assert {public_component(component) for component in COMPONENTS} == set(COMPONENTS)
    assert public_component("something else") == "none"
