from __future__ import annotations

import pytest

from harness.reference.config import TrainConfig, check_world, parse_config
from harness.reference.world import World, read_world


def test_defaults():
    assert parse_config([]) == TrainConfig()


def test_values_are_converted():
    config = parse_config(["--out", "/x", "--steps", "7", "--reshard", "--dropout", "0.25", "--defect", "no-rng"])
    assert (str(config.out), config.steps, config.reshard, config.dropout, config.defect) == ("/x", 7, True, 0.25, ("no-rng",))


def test_all_problems_are_in_one_error():
    with pytest.raises(ValueError, match="unknown argument --bogus") as caught:
        parse_config(["--bogus", "--steps", "x", "--format", "zip", "--keep-last", "0", "--defect", "nope", "--width", "6"])
    for text in ("--steps needs int, found 'x'", "--format must be one of", "--keep-last", "--defect nope", "--width"):
        assert text in str(caught.value)


def test_not_a_number_is_no_dropout():
    with pytest.raises(ValueError, match="--dropout must be a finite number"):
        parse_config(["--dropout", "nan"])


def test_defects_belong_to_formats():
    with pytest.raises(ValueError, match="in-place exists in --format single only, found dcp"):
        parse_config(["--format", "dcp", "--defect", "in-place"])


def test_the_global_batch_must_divide():
    check_world(TrainConfig(global_batch=12), World(0, 0, 3))
    with pytest.raises(ValueError, match=r"--global-batch 12 cannot be shared by 5 ranks.*remainder 2"):
        check_world(TrainConfig(global_batch=12), World(0, 0, 5))


def test_world_from_the_environment():
    assert read_world({}) == World(0, 0, 1)
    assert read_world({"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}) == World(2, 1, 4)


@pytest.mark.parametrize("environment", [{"RANK": "x"}, {"RANK": "1"}, {"RANK": "-1"}, {"LOCAL_RANK": "-1"}, {"WORLD_SIZE": "0"}])
def test_a_wrong_world_is_refused(environment):
    with pytest.raises(ValueError, match=next(iter(environment))):
        read_world(environment)
