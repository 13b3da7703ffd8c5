"""Which samples a batch holds: what a module makes of others is no data. In this process, without a job."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "harness" / "probe" / "injected"))

from resume_probe import digests
from resume_probe.inputs import Inputs

LAYER = torch.nn.Linear(3, 3)
X = torch.arange(12.0).view(4, 3)


def test_the_inputs_of_one_module_are_its_samples():
    inputs = Inputs()
    assert inputs.given([(X,), {}], training=True) == digests.rows([X])
    assert inputs.taken() == digests.rows([X])
    assert inputs.taken() == []


def test_what_another_module_has_made_is_no_sample():
    inputs = Inputs()
    inputs.given([(X,), {}], training=True)
    made = LAYER(X)
    inputs.made({"logits": made})
    inputs.given([(made, X[:, :1]), {}], training=True)
    inputs.given([(made.detach(),), {}], training=True)
    assert inputs.taken() == digests.rows([X]) + digests.rows([X[:, :1]])


def test_where_nothing_else_was_given_it_is_what_there_is():
    inputs = Inputs()
    made = LAYER(X)
    assert inputs.given([(made,), {}], training=True) == []
    assert inputs.taken() == digests.rows([made])


def test_memory_that_is_used_again_is_data_again():
    inputs = Inputs()
    made = LAYER(X).detach()
    inputs.made(made)
    del made
    gc.collect()
    again = X.clone()
    assert inputs.given([(again,), {}], training=True) == digests.rows([X])
    assert inputs.taken() == digests.rows([X])


def test_what_the_batch_before_has_made_is_an_input_as_any_other():
    inputs = Inputs()
    hidden = LAYER(X).detach()
    inputs.made(hidden)
    inputs.taken()
    inputs.given([(X, hidden), {}], training=True)
    assert inputs.taken() == digests.rows([X, hidden])


def test_modules_in_evaluation_mode_count_where_no_other_is_called():
    inputs = Inputs()
    inputs.given([(X,), {}], training=False)
    assert inputs.samples == []
    assert inputs.taken() == digests.rows([X])
