from __future__ import annotations

import math

import pytest

from harness.oracle.finding import fail, hex_text, inconclusive, numbers_text


def test_a_misspelt_word_is_refused():
    with pytest.raises(ValueError, match="'divergd' is no kind of FAIL; expected one of diverged, state-lost"):
        fail("divergd", "loss", "x")
    with pytest.raises(ValueError, match="'hang' is no kind of INCONCLUSIVE"):
        inconclusive("hang", "liveness", "x")
    with pytest.raises(ValueError, match=r"'rgn\.python' is no component"):
        fail("state-lost", "state", "x", component="rgn.python")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "0x1p+0"),
        (3.119, (3.119).hex()),
        (float.fromhex("0x1.8f3c2p+1"), "0x1.8f3c2p+1"),
        (-0.0, "-0x0p+0"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_hex_is_exact_and_without_trailing_zeros(value, text):
    assert hex_text(value) == text
    assert math.isnan(value) or float.fromhex(text) == value


def test_runs_of_numbers_are_joined():
    assert numbers_text([9, 3, 5, 6, 7, 7]) == "3, 5-7, 9"
    assert numbers_text([]) == ""
