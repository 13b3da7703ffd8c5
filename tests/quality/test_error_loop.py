"""Every file operation of a small job fails once, in a run of its own; and a trainer that leaves rubbish is caught by it."""

from __future__ import annotations

import pytest

from harness import job
from harness.error_loop import error_loop

SMALL = {"ranks": 2, "steps": 2, "save_every": 1, "keep_last": 1, "batches_per_epoch": 2, "width": 16}
# Rank 1 writes nothing in `single`; in `sharded` it makes no directory and removes nothing.
LOOPS = [
    *(("single", 0, "ENOSPC", operation) for operation in ("open", "write", "rename")),
    *(("single", 0, "EIO", operation) for operation in ("write", "fsync", "unlink")),
    *(("sharded", 0, "ENOSPC", operation) for operation in ("open", "write", "mkdir")),
    *(("sharded", 0, "EIO", operation) for operation in ("fsync", "rename", "unlink", "rmdir")),
    *(("sharded", 1, "EIO", operation) for operation in ("open", "write", "fsync", "rename")),
]


@pytest.mark.parametrize(("format", "rank", "error", "operation"), LOOPS)
def test_whichever_operation_fails_nothing_is_lost(harness_workbench, tmp_path, format, rank, error, operation):
    result = error_loop(job(format, name=f"loop-{format}", **SMALL), harness_workbench, tmp_path, error, operation, rank)
    assert result.outcome == "PASS", result.describe()
    assert result.num_operations >= 1


@pytest.mark.parametrize(("operation", "rank"), [("open", 0), ("unlink", 0), ("rmdir", 0), ("open", 1)])
def test_whichever_operation_of_a_restart_fails_nothing_is_lost(harness_workbench, tmp_path, operation, rank):
    scenario = job("sharded", name="loop-restart", faults="sigkill all ranks at step 2", **SMALL)
    result = error_loop(scenario, harness_workbench, tmp_path, "EIO", operation, rank, attempt=1)
    assert result.outcome == "PASS", result.describe()


def test_a_trainer_that_overwrites_its_only_checkpoint_is_caught(harness_workbench, tmp_path):
    scenario = job("single", name="loop-in-place", defects="in-place", **{**SMALL, "steps": 3})
    result = error_loop(scenario, harness_workbench, tmp_path, "ENOSPC", "write")
    assert result.outcome == "FAIL"
    assert result.causes[0].kind == "last-good-lost"
    assert result.causes[0].first.directory.is_dir()


def test_a_limit_is_no_verdict(harness_workbench, tmp_path):
    result = error_loop(job("single", name="loop-limit", **SMALL), harness_workbench, tmp_path, "ENOSPC", "write", limit=2)
    assert (result.outcome, result.num_operations) == ("INCONCLUSIVE", 2)
