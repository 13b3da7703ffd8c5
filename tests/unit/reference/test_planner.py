"""The planner's figures against numbers that were worked out by hand, and against brute force where there is one."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from harness.reference import planner

HOUR_S = 3600


def test_activations_of_a_layer_of_width_8192_at_8192_tokens():
    assert planner.activation_bytes_per_layer(batch=1, length=8192, width=8192) == 12 * 2**26 * 2 == 1_610_612_736
    assert round(planner.activation_bytes_per_layer(1, 8192, 8192) / 1e9, 1) == 1.6


def test_activations_of_64_such_layers():
    assert round(planner.activation_bytes(64, 1, 8192, 8192) / 1e9) == 103
    assert planner.activation_bytes(64, 1, 8192, 8192, bytes_per_value=4) == 2 * planner.activation_bytes(64, 1, 8192, 8192)


def test_full_recompute_is_four_units_of_work_for_three():
    assert 1 + planner.recompute_overhead(1.0) == pytest.approx(4 / 3)
    assert round(100 * planner.recompute_overhead(1.0)) == 33


def test_selective_recompute_costs_about_five_percent():
    assert planner.recompute_overhead(planner.SELECTIVE_FRACTION) == pytest.approx(0.05)
    assert planner.recompute_overhead(0) == 0


def test_64_layers_are_best_cut_into_8_segments():
    assert planner.best_segment_length(64) == 8
    assert planner.num_segments(64, planner.best_segment_length(64)) == 8


def test_segments_have_four_layers_unless_asked_otherwise():
    assert planner.num_segments(64) == 16
    assert [planner.num_segments(layers) for layers in (1, 4, 5)] == [1, 1, 2]


def test_no_segment_length_keeps_less_than_the_best_one():
    def kept(layers, length):
        return math.ceil(layers / length) + length

    for layers in range(1, 400):
        least = min(kept(layers, length) for length in range(1, layers + 1))
        assert kept(layers, planner.best_segment_length(layers)) == least, layers


def test_bytes_per_parameter():
    assert planner.resume_bytes(1) == 14
    assert planner.export_bytes(1) == 2
    assert planner.training_bytes(1) == 16
    assert planner.resume_bytes(70_000_000_000) == 980_000_000_000


@pytest.mark.parametrize(
    ("parameters", "ranks", "expected"),
    [(1000, 1, 12_000), (1000, 8, 1500), (1001, 8, 12 * 126), (3, 8, 12), (10**18 + 1, 2, 12 * (5 * 10**17 + 1))],
)
def test_the_optimizer_of_zero1_is_shared_by_the_ranks(parameters, ranks, expected):
    assert planner.zero1_optimizer_bytes(parameters, ranks) == expected
    assert expected >= 12 * parameters / ranks


def test_what_takes_one_writer_4_hours_takes_64_about_4_minutes():
    size = 4 * HOUR_S * 10**9
    assert planner.write_s(size, 1, 1e9) == 4 * HOUR_S
    assert planner.write_s(size, 64, 1e9) == 225
    assert round(225 / 60) == 4


def test_writers_beyond_what_the_storage_takes_do_not_help():
    assert planner.write_s(1e12, 8, 1e9, aggregate_bytes_per_s=4e9) == planner.write_s(1e12, 4, 1e9) == 250
    assert planner.write_s(1e12, 2, 1e9, aggregate_bytes_per_s=4e9) == 500


COUNTS = (0, -1, 1.5, 2.0, True, "8", None, math.nan)
NUMBERS = (0, -1.0, math.nan, math.inf, "8", True)
COUNTED = {
    "batch": lambda bad: planner.activation_bytes_per_layer(bad, 8, 8),
    "length": lambda bad: planner.activation_bytes_per_layer(1, bad, 8),
    "width": lambda bad: planner.activation_bytes_per_layer(1, 8, bad),
    "bytes_per_value": lambda bad: planner.activation_bytes_per_layer(1, 8, 8, bad),
    "layers": lambda bad: planner.activation_bytes(bad, 1, 8, 8),
    "layers ": lambda bad: planner.best_segment_length(bad),
    "layers  ": lambda bad: planner.num_segments(bad),
    "segment_length": lambda bad: planner.num_segments(8, bad),
    "parameters": planner.resume_bytes,
    "parameters ": planner.export_bytes,
    "parameters  ": planner.training_bytes,
    "parameters   ": lambda bad: planner.zero1_optimizer_bytes(bad, 2),
    "ranks": lambda bad: planner.zero1_optimizer_bytes(8, bad),
    "writers": lambda bad: planner.write_s(1.0, bad, 1.0),
}
MEASURED = {
    "size_bytes": lambda bad: planner.write_s(bad, 1, 1.0),
    "writer_bytes_per_s": lambda bad: planner.write_s(1.0, 1, bad),
    "aggregate_bytes_per_s": lambda bad: planner.write_s(1.0, 1, 1.0, bad),
}


@pytest.mark.parametrize("bad", COUNTS, ids=repr)
@pytest.mark.parametrize("name", COUNTED)
def test_a_count_that_is_none_is_refused(name, bad):
    with pytest.raises(ValueError, match=f"^{name.strip()} must be a whole number of at least 1, found"):
        COUNTED[name](bad)


@pytest.mark.parametrize("bad", NUMBERS, ids=repr)
@pytest.mark.parametrize("name", MEASURED)
def test_a_size_that_is_none_is_refused(name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be positive and finite, found"):
        MEASURED[name](bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, math.inf, "0.5", None, True], ids=repr)
def test_a_fraction_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match=r"^forward_fraction must be from 0 to 1, found"):
        planner.recompute_overhead(bad)


def test_the_planner_needs_no_torch():
    program = "import sys; import harness.reference.planner; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
