"""Shares of work: everything in exactly one of them, whatever the order, and none much larger than another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.shard import Shard

KEYS = st.lists(st.text(), unique=True, max_size=60)


@given(KEYS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_every_key_is_in_one_share_in_any_order(keys, count, random):
    shares = []
    for index in range(1, count + 1):
        random.shuffle(keys)
        shares.append(Shard(index, count).of(keys))
    assert sum(map(len, shares)) == len(keys)
    assert set().union(*shares) == set(keys)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_neighbours_are_dealt_out():
    tests = [f"test_a[{number}]" for number in range(100)] + [f"test_b[{number}]" for number in range(100)]
    slow = [sum(name.startswith("test_b") for name in Shard(index, 4).of(tests)) for index in range(1, 5)]
    assert min(slow) > 10


def test_a_share_is_written_as_it_is_read():
    assert str(Shard.parse("2/4")) == "2/4"
    assert Shard.parse("2/4") == Shard(2, 4)


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1.5/4", "1/99999", "１/２x"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(UsageError, match="expected a share of all, such as 1/4"):
        Shard.parse(text)
