"""Well-known recipes for a checkpoint that lose it: each crash state of one save is tried, and the cause is named.

Nobody says here where to strike. The job is recorded, every state in which it can die is rebuilt and resumed from, and what
the failing ones have in common must be the recipe's mistake: which operation, of which rank, and what it should have waited
for, or which sync is missing. The plainest failing state is then brought about once more by really killing the job there.
The other recipes are in tests/quality/test_recipes_explored.py.
"""

from __future__ import annotations


def test_a_file_that_is_overwritten_in_place(explored, repeat):
    exploration = explored("single", "in-place", power=False)
    # A second mistake is only seen, and does no harm to a process that is killed: the name of the file is never synced.
    cause, unsynced = exploration.causes
    assert (cause.sort, cause.kind, cause.component) == ("gap", "last-good-lost", "checkpoint-files")
    assert (cause.operation, cause.rank, cause.file) == ("open", 0, "checkpoint.pt")
    assert cause.text == (
        "checkpoint.pt is written in place: rank 0's open of checkpoint.pt comes before rank 0's last write of checkpoint.pt"
    )
    assert (unsynced.sort, unsynced.kind) == ("durability", "not-durable")
    assert repeat(cause).kind == "last-good-lost"
