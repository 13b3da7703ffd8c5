"""The durability oracle on hand-written operation logs."""

from __future__ import annotations

import pytest
from histories import attempt, baseline, foreign_workload, only, run_of, scenario

from harness.oracle.durability import durability

FILE, TEMPORARY = "step-00000004.pt", "step-00000004.pt.1.tmp"
SAVED = {"event": "mark", "what": "save", "moment": "end", "rank": 0, "step": 4, "checkpoint": FILE}


def operation(name, path, to=None, *, call=None, tampered=None):
    return {"event": "operation", "operation": name, "call": call or name, "path": path, "to": to, "tampered": tampered}


WHOLE = [
    operation("open", TEMPORARY),
    operation("write", TEMPORARY),
    operation("fsync", TEMPORARY),
    operation("rename", TEMPORARY, FILE),
    operation("fsync", "."),
]


def case(tmp_path, operations, saved=SAVED, *, foreign=False):
    one = attempt(0, 1, 5, path=tmp_path)
    one.operations.extend([*operations, saved])
    chosen = scenario(faults=())
    return durability(run_of(one, case=foreign_workload(chosen) if foreign else chosen), baseline())


def without(name, path=None):
    return [one for one in WHOLE if (one["operation"], one["path"]) != (name, path or one["path"])]


def test_write_sync_rename_sync_passes(tmp_path):
    assert case(tmp_path, WHOLE) == []


def test_a_rename_without_a_sync_of_the_file(tmp_path):
    finding = only(case(tmp_path, without("fsync", TEMPORARY)), "not-durable")
    assert (finding.component, finding.file, finding.rank, finding.step) == ("checkpoint-files", FILE, 0, 4)
    assert finding.expected == "a sync of the file"


def test_a_rename_without_a_sync_of_the_directory(tmp_path):
    finding = only(case(tmp_path, without("fsync", ".")), "not-durable")
    assert finding.expected == "a sync of the directory that holds its name"


def test_a_write_after_the_sync(tmp_path):
    late = [*WHOLE, operation("write", FILE)]
    assert only(case(tmp_path, late), "not-durable").file == FILE


def test_a_sync_that_the_harness_made_fail_has_not_happened(tmp_path):
    failed = [{**one, "tampered": "EIO"} if one["operation"] == "fsync" and one["path"] == TEMPORARY else one for one in WHOLE]
    only(case(tmp_path, failed), "not-durable")


@pytest.mark.parametrize("call", ["sync", "syncfs"])
def test_a_sync_of_everything_counts(tmp_path, call):
    everything = [one for one in WHOLE if one["operation"] != "fsync"]
    assert case(tmp_path, [*everything, operation("fsync", "", call=call)]) == []


def test_a_file_in_a_directory_needs_both_names(tmp_path):
    saved = {**SAVED, "checkpoint": "step-00000004"}
    made = [operation("mkdir", "step-00000004"), operation("open", "step-00000004/a"), operation("fsync", "step-00000004")]
    assert only(case(tmp_path, made, saved), "not-durable").file == "step-00000004"
    assert case(tmp_path, [*made, operation("fsync", ".")], saved) == []


def test_a_directory_that_is_renamed_takes_what_is_in_it_along(tmp_path):
    saved = {**SAVED, "checkpoint": "step-00000004"}
    moved = [operation("open", "tmp/a"), operation("write", "tmp/a"), operation("rename", "tmp", "step-00000004")]
    moved += [operation("fsync", "."), operation("fsync", "step-00000004")]
    assert only(case(tmp_path, moved, saved), "not-durable").file == "step-00000004/a"


def test_what_was_removed_again_is_not_at_risk(tmp_path):
    assert case(tmp_path, [*WHOLE, operation("open", f"{FILE}/x"), operation("unlink", f"{FILE}/x")]) == []


def test_files_of_other_checkpoints_do_not_matter(tmp_path):
    assert case(tmp_path, [*WHOLE, operation("write", "step-00000008.pt.1.tmp")]) == []


def test_a_foreign_trainer_has_promised_nothing(tmp_path):
    assert case(tmp_path, without("fsync"), foreign=True) == []


def test_a_record_under_the_name_that_a_directory_had_before_another_rank_renamed_it(tmp_path):
    raced = [
        operation("open", ".step/a"),
        operation("write", ".step/a"),
        operation("rename", ".step", FILE),
        operation("fsync", ".step/a"),  # it was called before the rename, and is recorded behind it
        operation("fsync", FILE),
        operation("fsync", "."),
    ]
    assert case(tmp_path, raced) == []
    assert only(case(tmp_path, [*raced, operation("write", ".step/a")]), "not-durable").file == f"{FILE}/a"
