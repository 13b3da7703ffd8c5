from __future__ import annotations

import pytest

from harness.reference.config import TrainConfig, build_parser, check_world, parse_config
from harness.reference.train import USAGE, main
from harness.reference.world import World, read_world


def test_defaults():
    assert parse_config([]) == TrainConfig()


def test_values_are_converted():
    config = parse_config(["--out", "/x", "--steps", "7", "--reshard", "--dropout", "0.25", "--defect", "no-rng"])
    assert (str(config.out), config.steps, config.reshard, config.dropout, config.defect) == ("/x", 7, True, 0.25, ("no-rng",))


def test_all_problems_are_in_one_error():
    with pytest.raises(ValueError, match="unknown argument --bogus") as caught:
        parse_config(["--bogus", "--steps", "x", "--format", "zip", "--keep-last", "0", "--defect", "nope", "--width", "6"])
    for text in ("--steps needs int, found 'x'", "--format must be one of", "--keep-last", "defect nope", "--width"):
        assert text in str(caught.value)


def test_not_a_number_is_no_dropout():
    with pytest.raises(ValueError, match="--dropout must be a finite number"):
        parse_config(["--dropout", "nan"])


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", r"--out needs a directory, found ''"),
        ("/dev/null", "found /dev/null, which is none"),
        ("/dev/null/a/b", "/dev/null,"),
    ],
)
def test_a_place_where_no_checkpoint_can_be_is_a_usage_error(capsys, out, said):
    with pytest.raises(ValueError, match=said):
        parse_config(["--out", out])
    assert main(["--out", out]) == USAGE
    assert "usage error: --out" in capsys.readouterr().err


def test_a_file_is_no_directory_and_a_new_place_is_one(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"found {tmp_path}/file, which is none"):
        parse_config(["--out", str(tmp_path / "file")])
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(ValueError, match="dangling"):
        parse_config(["--out", str(tmp_path / "dangling")])
    for place in (tmp_path, tmp_path / "new" / "er"):
        assert parse_config(["--out", str(place)]).out == place
    assert not (tmp_path / "new").exists()


def test_every_format_takes_reshard_and_the_help_says_for_which_it_means_something():
    assert parse_config(["--format", "single", "--reshard"]).reshard
    assert "the other formats always can" in " ".join(build_parser().format_help().split())


def test_defects_belong_to_formats():
    with pytest.raises(ValueError, match="in-place: exists in the format single only, found dcp"):
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
