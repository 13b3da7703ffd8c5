"""The recipes that scenarios/test_broken_recipes.py leaves out, explored alike; and healthy jobs, in which nothing is found."""

from __future__ import annotations


def sole(exploration):
    assert exploration.outcome == "FAIL", exploration.inconclusive
    assert [cause.sentence for cause in exploration.causes[1:]] == []
    return exploration.causes[0]


def test_a_manifest_that_is_committed_first(explored, repeat):
    cause = sole(explored("sharded", "manifest-first", ranks=2, power=False))
    assert (cause.sort, cause.kind, cause.component) == ("gap", "lost-work", "checkpoint-files")
    assert (cause.operation, cause.rank, cause.file) == ("rename", 0, "step-00000002/manifest.json")
    for rank in (0, 1):
        assert f"rank {rank}'s rename of step-*/rank{rank}.bin" in cause.missing
    assert cause.text == f"rank 0's rename of step-*/manifest.json comes before {cause.missing}"
    assert repeat(cause).kind == "lost-work"


def test_shards_that_are_renamed_into_a_used_directory(explored, repeat):
    exploration = explored("sharded", "reuse-directory", ranks=2, power=False)
    assert {cause.kind for cause in exploration.causes} == {"last-good-lost"}
    opened = {(cause.operation, cause.rank, cause.file) for cause in exploration.causes}
    # Whichever rank comes first.
    assert opened == {("rename", rank, f"latest/rank{rank}.bin") for rank in (0, 1)}
    for cause in exploration.causes:
        assert "rank 0's rename of latest/manifest.json" in cause.missing
        assert repeat(cause).kind == "last-good-lost"


def test_a_file_that_is_renamed_without_a_sync(explored, repeat):
    cause = sole(explored("single", "no-fsync", kill=False))
    assert (cause.sort, cause.kind) == ("durability", "last-good-lost")
    assert (cause.operation, cause.rank) == ("write", 0)
    assert cause.missing == "the content of step-*.pt by rank 0 (no fsync of the file)"
    assert cause.text.startswith("a power cut after rank 0's fsync of the checkpoint directory")
    assert repeat(cause).kind == "last-good-lost"


def test_a_commit_that_does_not_wait_for_the_other_ranks_shard(explored, repeat):
    cause = sole(explored("sharded", "missing-barrier", ranks=2, power=False))
    assert (cause.sort, cause.kind) == ("order", "lost-work")
    assert (cause.operation, cause.rank, cause.file) == ("rename", 0, "step-00000002/manifest.json")
    assert cause.missing == "rank 1's rename of step-*/rank1.bin"
    assert cause.text == "rank 0's rename of step-*/manifest.json does not wait for rank 1's rename of step-*/rank1.bin"
    assert repeat(cause).kind == "lost-work"


def test_a_pointer_that_is_replaced_before_what_it_names_is_written(explored, repeat):
    cause = sole(explored("single", "pointer-first", power=False))
    assert (cause.sort, cause.kind) == ("gap", "bad-refusal")
    assert (cause.operation, cause.rank, cause.file) == ("rename", 0, "latest")
    assert cause.text == "rank 0's rename of latest comes before rank 0's rename of step-*.pt"
    assert repeat(cause).kind == "bad-refusal"


def test_an_old_checkpoint_that_is_removed_before_the_new_one_is_written(explored, repeat):
    cause = sole(explored("single", "delete-first", power=False))
    assert (cause.sort, cause.kind) == ("gap", "last-good-lost")
    assert (cause.operation, cause.rank, cause.file) == ("unlink", 0, "step-00000001.pt")
    assert cause.text == "rank 0's unlink of step-*.pt comes before rank 0's rename of step-*.pt"
    assert repeat(cause).kind == "last-good-lost"


def test_a_directory_that_is_not_synced(explored, repeat):
    cause = sole(explored("single", "no-directory-fsync", kill=False))
    assert (cause.sort, cause.kind) == ("durability", "last-good-lost")
    assert (cause.operation, cause.rank) == ("rename", 0)
    assert cause.missing == "the rename of step-*.pt by rank 0 (no fsync of the checkpoint directory)"
    assert repeat(cause).kind == "last-good-lost"


def test_shards_and_a_manifest_that_are_not_synced(explored, repeat):
    cause = sole(explored("sharded", "no-fsync", kill=False))
    files = ("step-*/manifest.json", "step-*/rank0.bin")
    assert cause.missing == " and ".join(f"the content of {file} by rank 0 (no fsync of the file)" for file in files)
    assert (cause.sort, cause.kind, cause.operation) == ("durability", "last-good-lost", "write")
    assert repeat(cause).kind == "last-good-lost"


def test_a_shared_directory_that_each_rank_renames_when_it_is_done(explored, repeat):
    exploration = explored("sharded", "early-rename", ranks=2, power=False)
    assert len(exploration.causes) == 2
    for cause in exploration.causes:
        other = 1 - cause.rank
        assert (cause.sort, cause.kind, cause.component) == ("order", "bad-refusal", "checkpoint-files")
        assert (cause.operation, cause.file) == ("rename", "step-00000002")
        assert cause.missing.startswith(f"rank {other}'s last write of ")
        assert cause.missing.endswith(f"step-*/rank{other}.bin")
        assert f"rank {cause.rank}'s rename of step-* does not wait for" in cause.text
        assert repeat(cause).kind == "bad-refusal"
    assert {cause.rank for cause in exploration.causes} == {0, 1}
