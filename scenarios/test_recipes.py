"""Two well-known recipes for a checkpoint fail their own promise; the reference trainer, in the same situation, does not.

Recipe 1: new shards are renamed into the directory that holds the committed checkpoint. A crash between two renames loses
both: the old checkpoint is half replaced, the new one half there.
Recipe 2: a file is renamed to its name without having been synced. The name can survive a power cut without the content.
Each is a planted defect here (`harness.reference.defects`), so that both sides run the same trainer.
"""

from __future__ import annotations

import pytest
from saves import SAVE, short_job

from harness.case import run_case

BETWEEN_RENAMES = "sigkill all ranks after rename latest/rank1.bin.tmp occurrence 3 by rank 1"


def found(harness_workbench, scenario):
    verdict, _ = run_case(scenario, harness_workbench)
    return verdict


def test_shards_renamed_into_a_used_directory_lose_both_checkpoints(harness_workbench):
    recipe = short_job("sharded", faults=BETWEEN_RENAMES, defects=("reuse-directory",), name="recipe-used-directory")
    verdict = found(harness_workbench, recipe)
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", "last-good-lost", "checkpoint-files")
    assert verdict.resumed_from == ()  # nothing was left to resume from


@pytest.mark.parametrize("rank", [1])
def test_the_reference_is_killed_between_two_renames_of_shards(check_resume, rank):
    verdict = check_resume(
        short_job("sharded", faults=f"sigkill all ranks before rename {SAVE}/rank{rank}.bin.tmp by rank {rank}")
    )
    assert verdict.resumed_from == (4,)


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_a_rename_without_a_sync_is_not_durable(harness_workbench, format):
    verdict = found(harness_workbench, short_job(format, defects=("no-fsync",), name=f"recipe-no-fsync-{format}"))
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", "not-durable", "checkpoint-files")
    assert verdict.root is not None
    assert "sync of the file" in verdict.root.message


@pytest.mark.parametrize("format", ["single", "sharded", "dcp", "dcp-async", "safetensors"])
@pytest.mark.control
def test_every_checkpoint_of_the_reference_is_durable_when_it_is_reported(check_resume, format):
    check_resume(short_job(format, ranks=1))
