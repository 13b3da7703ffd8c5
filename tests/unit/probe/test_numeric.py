from __future__ import annotations

import json

import pytest
import torch

from harness.probe.numeric import NumericFault, apply_numeric_faults, parse_numeric_faults


def fault(effect: str, ranks=None, batch: int = 3, times: int = 2) -> NumericFault:
    return NumericFault(effect, ranks, batch, times)


def gradient(effect: str) -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    apply_numeric_faults((fault(effect),), leaf * 1.0, 3, 0).sum().backward()
    return leaf.grad


def test_one_part_of_a_batch():
    text = json.dumps([{"effect": "overflow", "ranks": None, "batch": 3, "times": 2, "micro_batch": 2}])
    (bad,) = parse_numeric_faults(text)
    struck = [(batch, micro) for batch in range(1, 6) for micro in (1, 2, 3) if bad.strikes(batch, 0, micro)]
    assert struck == [(3, 2), (4, 2)]
    logits = torch.ones(2)
    assert apply_numeric_faults((bad,), logits, 3, 0, 1) is logits
    assert (apply_numeric_faults((bad,), logits, 3, 0, 2) > 1e4).all()


def test_parsing():
    text = json.dumps([{"effect": "nan", "ranks": [0, 2], "batch": 3, "times": 1}])
    assert parse_numeric_faults(text) == (NumericFault("nan", (0, 2), 3, 1),)
    assert parse_numeric_faults("") == ()
    assert parse_numeric_faults("[]") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("{}", "must be a list"),
        ("[1]", "must have exactly"),
        ('[{"effect": "nan", "batch": 1, "times": 1}]', "must have exactly"),
        ('[{"effect": "boom", "ranks": null, "batch": 1, "times": 1}]', "effect must be one of"),
        ('[{"effect": "nan", "ranks": [-1], "batch": 1, "times": 1}]', "ranks must be"),
        ('[{"effect": "nan", "ranks": null, "batch": 0, "times": 1}]', "batch must be"),
        ('[{"effect": "nan", "ranks": null, "batch": 1, "times": true}]', "times must be"),
        ('[{"effect": "nan", "ranks": null, "batch": 1, "times": 1, "micro_batch": 0}]', "micro_batch must be"),
        ('[{"effect": "nan", "ranks": null, "batch": 1, "times": 1, "micro": 2}]', "must have exactly"),
    ],
)
def test_what_is_not_understood_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_numeric_faults(text)


def test_it_strikes_its_batches_and_ranks_only():
    one = fault("nan", ranks=(1,))
    assert [batch for batch in range(1, 8) if one.strikes(batch, 1)] == [3, 4]
    assert not one.strikes(3, 0)
    assert fault("nan").strikes(3, 0)
    logits = torch.ones(2)
    assert apply_numeric_faults((one,), logits, 3, 0) is logits


def test_effects_on_logits():
    logits = torch.ones(2, dtype=torch.float16)
    assert torch.isinf(apply_numeric_faults((fault("overflow"),), logits, 3, 0)).all()
    assert torch.isnan(apply_numeric_faults((fault("nan"),), logits, 3, 0)).all()
    assert torch.equal(logits, torch.ones(2, dtype=torch.float16))


def test_effects_on_gradients():
    assert not torch.isfinite(gradient("nonfinite-grad")).any()
    assert gradient("spike").tolist() == [1000.0, 1000.0]
    constant = torch.ones(2)
    assert torch.equal(apply_numeric_faults((fault("spike"),), constant, 3, 0), constant)
