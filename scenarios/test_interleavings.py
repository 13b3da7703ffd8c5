"""One rank's shard waits while the rank that commits goes on as far as it can; then everything dies.

Where a barrier orders the two, the commit cannot come while the shard is held. The red control has no barrier, and commits a
checkpoint without the shard. `harness check` finds such pairs by itself; here they are spelled out.
"""

from __future__ import annotations

import pytest
from saves import SAVE, short_job

from harness.case import run_case

COMMITTED = f"sigkill all ranks after rename {SAVE}/manifest.json.tmp by rank 0"
UNTIL = f"until rank 0 rename {SAVE}/manifest.json.tmp"


@pytest.mark.parametrize("operation", ["write", "rename"])
def test_the_commit_waits_for_the_other_ranks_shard(check_resume, operation):
    hold = f"hold rank 1 before {operation} {SAVE}/rank1.bin.tmp {UNTIL}"
    assert check_resume(short_job("sharded", faults=[hold, COMMITTED])).resumed_from == (6,)


def test_the_commit_of_dcp_waits_too(check_resume):
    hold = f"hold rank 1 before fsync {SAVE}/__1_0.distcp {UNTIL}"
    assert check_resume(short_job("dcp", faults=[hold, COMMITTED])).resumed_from == (6,)


def test_a_rank_dies_while_another_one_is_held(check_resume):
    hold = f"hold rank 1 before rename {SAVE}/rank1.bin.tmp {UNTIL}"
    faults = [hold, f"sigkill rank 0 before rename {SAVE}/rank0.bin.tmp"]
    assert check_resume(short_job("sharded", faults=faults)).resumed_from == (4,)


def test_without_a_barrier_the_commit_comes_first(harness_workbench):
    hold = f"hold rank 1 before write {SAVE}/rank1.bin.tmp {UNTIL}"
    scenario = short_job("sharded", faults=[hold, COMMITTED], defects=("missing-barrier",), name="no-barrier")
    verdict, _ = run_case(scenario, harness_workbench)
    assert (verdict.outcome, verdict.kind, verdict.component) == ("FAIL", "lost-work", "checkpoint-files")
    assert verdict.resumed_from == (4,)
