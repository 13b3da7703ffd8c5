from __future__ import annotations

import pytest
from histories import attempt, baseline, foreign_workload, kinds, name_of, only, run_of, scenario

from harness.oracle.history import History
from harness.oracle.unsaved import unsaved

FULL = "ENOSPC rank 0 on write *.tmp"


def mark(moment, batch):
    return {"event": "mark", "rank": 0, "what": "save", "moment": moment, "step": batch, "checkpoint": name_of(batch)}


def operation(batch, fault=None, word="write", path=""):
    path = path or f"{name_of(batch)}.tmp"
    return {"event": "operation", "rank": 0, "operation": word, "call": word, "path": path, "to": None, "tampered": fault}


def ended(path, *operations, fault=FULL, workload=foreign_workload):
    """A job that gets done in its first launch, in which these operations were seen."""
    only_one = attempt(0, 1, 24, path=path, ranks=1, ended=True)
    only_one.operations.extend(operations)
    case = scenario((fault,), world_sizes=(1,))
    return run_of(only_one, case=workload(case) if workload else case)


def test_a_save_that_succeeds_is_saved(tmp_path):
    assert unsaved(ended(tmp_path, mark("begin", 24), operation(24), mark("end", 24)), baseline(1)) == []


def test_exit_code_0_after_a_last_save_that_was_refused_is_a_silent_exit(tmp_path):
    run = ended(tmp_path, mark("begin", 24), operation(24, FULL), mark("end", 24))
    finding = only(unsaved(run, baseline(1)), "silent-exit")
    assert (finding.component, finding.step, finding.rank, finding.file) == ("checkpoint-files", 24, 0, f"{name_of(24)}.tmp")
    assert "ENOSPC and was not tried again" in finding.message
    assert [commit.batch for commit in History(run).commits[0]][-1] == 20


@pytest.mark.parametrize("end", [(mark("end", 24),), ()])
def test_what_is_tried_again_is_saved(tmp_path, end):
    run = ended(tmp_path, mark("begin", 24), operation(24, FULL), *end, operation(24, FULL), operation(24))
    assert unsaved(run, baseline(1)) == []
    assert [commit.batch for commit in History(run).commits[0]][-1] == 24


def test_what_is_done_to_another_file_is_not_it_tried_again(tmp_path):
    run = ended(tmp_path, mark("begin", 24), operation(24, FULL), operation(24, path="config.json"), operation(24, word="open"))
    assert kinds(unsaved(run, baseline(1))) == ["silent-exit"]


def test_a_later_save_makes_good_what_was_refused_which_is_no_commit(tmp_path):
    run = ended(tmp_path, mark("begin", 20), operation(20, FULL), mark("begin", 24), operation(24))
    assert unsaved(run, baseline(1)) == []
    assert [commit.batch for commit in History(run).commits[0]] == [4, 8, 12, 16, 24]


@pytest.mark.parametrize("fault", ["short-write rank 0 on write *.tmp at 50%", "sigkill rank 0 during write *.tmp at 50%"])
def test_a_write_that_did_not_fail_is_not_refused(tmp_path, fault):
    assert unsaved(ended(tmp_path, mark("begin", 24), operation(24, fault), fault=fault), baseline(1)) == []


@pytest.mark.parametrize("word", ["fsync", "unlink", "read"])
def test_a_sync_a_removal_or_a_read_that_fails_leaves_what_was_written(tmp_path, word):
    fault = f"EIO rank 0 on {word} *.tmp"
    assert unsaved(ended(tmp_path, mark("begin", 24), operation(24, fault, word), fault=fault), baseline(1)) == []


def test_another_exit_code_says_that_it_went_wrong(tmp_path):
    run = ended(tmp_path, mark("begin", 24), operation(24, FULL))
    run.attempts[0].of("exited")[0]["code"] = 1
    assert unsaved(run, baseline(1)) == []


def test_the_reference_trainer_has_a_word_for_what_it_leaves_out(tmp_path):
    assert unsaved(ended(tmp_path, mark("begin", 24), operation(24, FULL), workload=None), baseline(1)) == []


def test_an_operation_outside_of_any_save_is_no_save(tmp_path):
    assert unsaved(ended(tmp_path, operation(1, FULL)), baseline(1)) == []
