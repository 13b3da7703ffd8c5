"""A rank, or all of them, die by SIGKILL at one exact system call: of a save, of a rotation, of a load.

What must hold: the job restarts from the newest committed checkpoint and gives, batch for batch, the losses of the run
that was never interrupted. Controls: test_control.py runs every format and number of ranks without a fault.
"""

from __future__ import annotations

import pytest
from saves import COMMIT, SAVE, commit_rank, data_file, short_job

SHARDS = ("sharded", "dcp")


@pytest.mark.parametrize(
    ("format", "ranks", "position"),
    [("sharded", 2, "50%"), ("single", 1, "50%"), ("dcp", 2, "last byte")],
)
def test_a_rank_dies_in_the_middle_of_a_write(check_resume, format, ranks, position):
    rank = commit_rank(format, ranks)
    check_resume(
        short_job(format, ranks=ranks, faults=f"sigkill rank {rank} during write {data_file(format, rank)} at {position}")
    )


def test_a_rank_dies_in_the_second_save_whatever_it_writes(check_resume):
    # Nine writes make a save; no name is given, so this also strikes a trainer that writes in place.
    check_resume(short_job("single", ranks=1, faults="sigkill rank 0 during write * at 50% occurrence 13"))


@pytest.mark.parametrize(("format", "ranks"), [("single", 2), ("sharded", 4)])
def test_one_of_several_ranks_dies_in_the_middle_of_a_write(check_resume, format, ranks):
    rank = commit_rank(format, ranks)
    check_resume(short_job(format, ranks=ranks, faults=f"sigkill rank {rank} during write {data_file(format, rank)} at 50%"))


@pytest.mark.parametrize(("format", "moment"), [("single", "before"), ("sharded", "after")])
def test_a_rank_dies_around_a_write(check_resume, format, moment):
    rank = commit_rank(format, 2)
    check_resume(short_job(format, ranks=2, faults=f"sigkill rank {rank} {moment} write {data_file(format, rank)}"))


@pytest.mark.parametrize(("format", "ranks"), [("single", 2), ("sharded", 2), ("dcp", 2)])
def test_all_ranks_die_in_the_middle_of_a_write(check_resume, format, ranks):
    rank = commit_rank(format, ranks)
    check_resume(short_job(format, ranks=ranks, faults=f"sigkill all ranks during write {data_file(format, rank)} at 50%"))


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_all_ranks_die_in_the_first_save_of_all(check_resume, format):
    path = data_file(format, save="step-00000002")
    check_resume(short_job(format, ranks=2, faults=f"sigkill all ranks during write {path} at 50%"))


@pytest.mark.parametrize(("format", "ranks"), [("sharded", 4), ("dcp", 2)])
def test_all_ranks_die_between_the_shards_and_the_manifest(check_resume, format, ranks):
    check_resume(short_job(format, ranks=ranks, faults=f"sigkill all ranks before open {SAVE}/manifest.json.tmp"))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("format", "ranks"), [("sharded", 2), ("dcp", 2)])
def test_all_ranks_die_around_the_commit(check_resume, format, ranks, moment):
    check_resume(short_job(format, ranks=ranks, faults=f"sigkill all ranks {moment} rename {COMMIT[format]}"))


@pytest.mark.parametrize(("moment", "rank"), [("before", 0), ("after", 1)])
def test_a_rank_dies_between_the_renames_of_two_shards(check_resume, moment, rank):
    check_resume(short_job("sharded", ranks=2, faults=f"sigkill rank {rank} {moment} rename {SAVE}/rank{rank}.bin"))


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_rank_0_dies_before_the_commit_is_durable(check_resume, format):
    check_resume(short_job(format, ranks=2, faults="sigkill rank 0 before fsync . occurrence 3"))


@pytest.mark.parametrize(("format", "moment"), [("single", "before"), ("sharded", "after"), ("dcp", "before")])
def test_rank_0_dies_in_the_rotation(check_resume, format, moment):
    path = "step-00000002.pt" if format == "single" else "step-00000002/manifest.json"
    check_resume(short_job(format, ranks=2, faults=f"sigkill rank 0 {moment} unlink {path}"))


@pytest.mark.parametrize("format", SHARDS)
def test_rank_0_dies_before_the_old_directory_is_gone(check_resume, format):
    check_resume(short_job(format, ranks=2, faults="sigkill rank 0 before rmdir step-00000002"))


@pytest.mark.parametrize(("format", "ranks"), [("single", 1), ("sharded", 2)])
def test_a_rank_dies_again_while_it_loads(check_resume, format, ranks):
    path = f"{SAVE}.pt" if format == "single" else f"{SAVE}/*"
    check_resume(
        short_job(
            format, ranks=ranks, faults=["sigkill all ranks at step 7", f"sigkill rank {ranks - 1} before read {path} attempt 1"]
        )
    )


@pytest.mark.parametrize("step", [1, 5])
def test_a_rank_dies_between_two_steps(check_resume, step):
    check_resume(short_job("sharded", ranks=2, faults=f"sigkill rank 1 at step {step}"))


def test_a_rank_dies_in_each_of_two_saves(check_resume):
    first = f"sigkill rank 1 during write {data_file('sharded', 1, 'step-00000004')} at 50%"
    second = f"sigkill rank 0 during write {data_file('sharded', 0, SAVE)} at 50% attempt 1"
    check_resume(short_job("sharded", ranks=2, faults=[first, second]))


def test_a_rank_is_stopped_and_the_others_do_not_wait_for_ever(check_resume):
    check_resume(short_job("sharded", ranks=2, faults="sigstop rank 1 at step 5", collective_timeout_s=2.0))
