"""All damages of a checkpoint at rest: none is taken for good, and each is found where checksums are not compared."""

from __future__ import annotations

import pytest

from harness import job
from harness.explore import record
from harness.sweep import Sampling, sweep

SHORT = {"steps": 4, "save_every": 1, "keep_last": 2, "batches_per_epoch": 2, "width": 16}
SAMPLE = {"dcp": 24, "safetensors": 24}  # of the listed ones; of the others all
LEAST = {"single": 40, "sharded": 100, "dcp": 24, "safetensors": 24}


@pytest.mark.parametrize("format", LEAST)
def test_no_damage_of_the_newest_checkpoint_is_taken_for_good(harness_workbench, tmp_path, format):
    recordings = record(job(format, ranks=2, name=f"swept-{format}", **SHORT), harness_workbench, tmp_path, once=True)
    result = sweep(recordings, harness_workbench, tmp_path / "cases", sample=SAMPLE.get(format))
    assert result.outcome == "PASS", result.describe()
    assert len(result.judged) + result.num_unchanged == SAMPLE.get(format, result.num_listed)
    assert result.num_listed >= LEAST[format]


@pytest.mark.parametrize("format", LEAST)
def test_without_checksums_flips_of_tensor_data_are_accepted_and_named(harness_workbench, tmp_path, format):
    scenario = job(format, ranks=2, name=f"unchecked-{format}", defects=["no-checksum"], **SHORT)
    recordings = record(scenario, harness_workbench, tmp_path, once=True)
    flips = "a flipped bit in the tensor data"
    result = sweep(recordings, harness_workbench, tmp_path / "cases", only=flips, sampling=Sampling(flips=3))
    assert {(cause.kind, cause.component) for cause in result.causes} == {("corrupt-accepted", "checkpoint-files")}
    assert sum(cause.num_cases for cause in result.causes) == len(result.judged) == result.num_listed
    assert all((cause.first.path / "plan.toml").exists() for cause in result.causes)


def test_a_trainer_that_looks_at_nothing_is_caught_by_a_shard_of_another_step(harness_workbench, tmp_path):
    # Of one number of ranks and one layout: nothing but a checksum tells such a shard from the right one.
    recordings = record(job("sharded", defects=["no-checksum"], **SHORT), harness_workbench, tmp_path, once=True)
    result = sweep(recordings, harness_workbench, tmp_path / "cases", only="older step in rank")
    assert [(cause.kind, cause.num_cases) for cause in result.causes] == [("corrupt-accepted", 2)]


def test_a_job_that_keeps_one_checkpoint_cannot_be_swept_and_says_so(harness_workbench, tmp_path):
    recordings = record(job("single", ranks=1, **{**SHORT, "keep_last": 1}), harness_workbench, tmp_path, once=True)
    result = sweep(recordings, harness_workbench, tmp_path / "cases")
    assert (result.outcome, result.judged) == ("INCONCLUSIVE", ())
    assert "never had two committed checkpoints" in result.describe()
