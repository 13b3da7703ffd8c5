from __future__ import annotations

from dataclasses import replace

import pytest
from histories import (
    STEPS,
    attempt,
    baseline,
    files_of,
    fired,
    foreign_workload,
    killed_and_resumed,
    kinds,
    name_of,
    only,
    record,
    run_of,
    scenario,
)

from harness.oracle.history import Commit, _rotated
from harness.oracle.retention import retention


def end_files(run, index):
    return record(run, index, "files", moment="end")["files"]


@pytest.mark.parametrize("format", ["single", "sharded"])
def test_a_tidy_job_passes(format):
    assert retention(killed_and_resumed(format=format), baseline()) == []


@pytest.mark.parametrize(("content", "found"), [(None, "no file"), ([1012, "0" * 64], "1012 bytes, sha256 000000000000…")])
def test_the_last_good_checkpoint_must_survive_byte_for_byte(content, found):
    run = killed_and_resumed()
    files = end_files(run, 0)
    if content is None:
        del files[name_of(12)]
    else:
        files[name_of(12)] = content
    finding = only(retention(run, baseline()), "last-good-lost")
    assert (finding.file, finding.attempt, finding.found) == (name_of(12), 0, found)
    assert finding.message == (
        "step-00000012.pt, committed in attempt 0 and the newest, is no longer whole at the end of attempt 0: "
        "step-00000012.pt (1 of 1 files)"
    )


@pytest.mark.parametrize("head", ["as committed", "another", "missing"])
def test_a_file_that_has_grown_still_holds_what_was_committed(head):
    run = killed_and_resumed()
    record_at_end = record(run, 0, "files", moment="end")
    size, digest = record_at_end["files"][name_of(12)]
    record_at_end["files"][name_of(12)] = [size + 100, "9" * 64]
    if head != "missing":
        record_at_end["heads"] = {name_of(12): [[3, "0" * 64], [size, digest if head == "as committed" else "8" * 64]]}
    kinds = [finding.kind for finding in retention(run, baseline())]
    assert kinds == ([] if head == "as committed" else ["last-good-lost"])


@pytest.mark.parametrize(("resumed", "kinds"), [(13, []), (12, ["last-good-lost"]), (0, ["last-good-lost"])])
def test_a_newer_checkpoint_of_the_same_name_has_replaced_it(tmp_path, resumed, kinds):
    run = run_of(attempt(0, 1, 14, path=tmp_path), attempt(1, 14, 15, path=tmp_path, resumed=12))
    run.attempts[0].of("committed")[-1].update(checkpoint="latest.pt", files={"latest.pt": [1012, "0" * 64]})
    for index, moment in ((0, "end"), (1, "begin"), (1, "end")):
        record(run, index, "files", moment=moment)["files"] = {"latest.pt": [1013, "1" * 64]}
    for log in run.attempts[1].ranks.values():
        log.of("resume")[0].update(checkpoint="latest.pt" if resumed else None, step=resumed)
    assert [finding.kind for finding in retention(run, baseline())] == kinds
    record(run, 1, "files", moment="end")["files"] = {}  # and that one must not be lost either
    assert only(retention(run, baseline()), "last-good-lost").attempt == (0 if kinds else 1)


@pytest.mark.parametrize(("step", "told_by"), [(12, "model+optimizer"), (13, "model")])
@pytest.mark.parametrize("foreign", [True, False])
def test_a_foreign_job_may_go_on_from_something_else_with_no_less(step, told_by, foreign):
    run = killed_and_resumed()
    for index, moment in ((0, "end"), (1, "begin"), (1, "end")):
        files = record(run, index, "files", moment=moment)["files"]
        files.pop(name_of(12), None)
    if foreign:
        run = replace(run, plan=replace(run.plan, scenario=foreign_workload(run.plan.scenario)))
    for log in run.attempts[1].ranks.values():
        log.of("resume")[0].update(checkpoint="last.pt", step=step, batch=step, told_by=told_by)
    assert ("last-good-lost" in kinds(retention(run, baseline()))) is not foreign


@pytest.mark.parametrize(("step", "told_by"), [(11, "model"), (12, "data"), (12, "checkpoint"), (0, "nothing")])
def test_less_or_unknown_is_a_loss(step, told_by):
    run = killed_and_resumed()
    del end_files(run, 0)[name_of(12)]
    run = replace(run, plan=replace(run.plan, scenario=foreign_workload(run.plan.scenario)))
    for log in run.attempts[1].ranks.values():
        log.of("resume")[0].update(checkpoint="last.pt", step=step, batch=step, told_by=told_by)
    assert "last-good-lost" in kinds(retention(run, baseline()))


def test_a_newer_commit_releases_the_older_one():
    run = killed_and_resumed()
    del end_files(run, 0)[name_of(8)]
    assert retention(run, baseline()) == []


def test_a_loss_is_reported_once_where_it_happened(tmp_path):
    second = attempt(1, 13, 14, path=tmp_path, resumed=12, before=(4, 8, 12))
    run = run_of(attempt(0, 1, 14, path=tmp_path), second)
    del end_files(run, 0)[name_of(12)]
    del end_files(run, 1)[name_of(12)]
    assert only(retention(run, baseline()), "last-good-lost").attempt == 0


def test_overwriting_the_only_file_in_place_loses_it(tmp_path):
    run = run_of(attempt(0, 1, 10, path=tmp_path))
    for commit in run.attempts[0].of("committed"):
        commit.update(checkpoint="checkpoint.pt", files={"checkpoint.pt": [1, f"of step {commit['step']}"]})
    end_files(run, 0)["checkpoint.pt"] = [0, "torn"]
    assert only(retention(run, baseline()), "last-good-lost").file == "checkpoint.pt"
    end_files(run, 0)["checkpoint.pt"] = [1, "of step 8"]
    assert retention(run, baseline()) == []


def test_what_the_harness_damaged_is_not_the_trainers_loss(tmp_path):
    hit = {"event": "damaged", "fault": "delete newest", "path": name_of(12), "checkpoint": name_of(12), "unchanged": False}
    second = attempt(1, 9, 10, path=tmp_path, resumed=8, before=(4, 8), supervisor=(hit,))
    run = run_of(attempt(0, 1, 14, path=tmp_path), second)
    assert retention(run, baseline()) == []
    del end_files(run, 1)[name_of(8)]
    assert only(retention(run, baseline()), "last-good-lost").file == name_of(8)


def test_files_that_were_not_recorded_say_nothing():
    run = killed_and_resumed()
    for index in (0, 1):
        run.attempts[index].supervisor.remove(record(run, index, "files", moment="end"))
    assert retention(run, baseline()) == []


@pytest.mark.parametrize("path", ["step-00000024.pt.77-ab.tmp", "step-00000024/rank0.bin.tmp", "step-00000028.tmp/rank0.bin"])
def test_temporary_files_after_a_clean_end(path):
    run = killed_and_resumed()
    end_files(run, 1)[path] = [1, "x"]
    finding = only([f for f in retention(run, baseline()) if "temporary" in f.message], "retention")
    assert finding.message == f"1 temporary files are left after a clean end, first {path}"


def test_a_directory_that_was_never_committed(tmp_path):
    run = killed_and_resumed(format="sharded")
    end_files(run, 1)["step-00000022/rank0.bin"] = [1, "x"]
    finding = only(retention(run, baseline()), "retention")
    assert finding.message == "step-00000022 is left after a clean end, and was never committed (1 such)"


def test_more_checkpoints_than_are_to_be_kept():
    run = killed_and_resumed()
    end_files(run, 1).update(files_of(12))
    assert only(retention(run, baseline()), "retention").message == "4 checkpoints are left after a clean end; 3 are to be kept"


def test_after_a_restart_that_had_nothing_to_save_one_more_may_be_there(tmp_path):
    first = attempt(0, 1, STEPS, path=tmp_path)
    second = attempt(1, 25, STEPS, path=tmp_path, resumed=24, ended=True)
    run = run_of(first, second)
    files = files_of(12) | files_of(16) | files_of(20) | files_of(24)
    end_files(run, 0).update(files)
    end_files(run, 1).update(files)
    assert retention(run, baseline()) == []
    end_files(run, 1).update(files_of(8))
    only(retention(run, baseline()), "retention")


def test_each_restart_that_died_before_its_rotation_may_have_left_one_more(tmp_path):
    first = attempt(0, 1, 16, path=tmp_path)
    second = attempt(1, 17, 20, path=tmp_path, resumed=16)  # one save, and it is unknown whether its rotation was done
    third = attempt(2, 21, STEPS, path=tmp_path, resumed=20)
    last = attempt(3, 25, STEPS, path=tmp_path, resumed=24, ended=True)
    run = run_of(first, second, third, last)
    files = files_of(4) | files_of(8) | files_of(12) | files_of(16) | files_of(20) | files_of(24)
    for index in range(4):
        end_files(run, index).update(files)
    assert retention(run, baseline()) == []
    end_files(run, 3).update(files_of(2))
    only(retention(run, baseline()), "retention")
    # Two saves of one attempt: the rotation of the first was done when the second began.
    run = run_of(
        first, attempt(1, 17, STEPS, path=tmp_path, resumed=16), attempt(2, 25, STEPS, path=tmp_path, resumed=24, ended=True)
    )
    for index in range(3):
        end_files(run, index).update(files)
    only(retention(run, baseline()), "retention")


def test_tidiness_is_asked_only_of_a_clean_end():
    run = killed_and_resumed()
    end_files(run, 0)["x.tmp"] = [1, "x"]
    assert retention(run, baseline()) == []
    end_files(run, 1)["x.tmp"] = [1, "x"]
    run.attempts[1].supervisor.append(fired("ENOSPC rank 0 on write *.tmp attempt 1"))
    assert retention(run, baseline()) == []


def test_of_a_foreign_trainer_only_temporary_files_are_known():
    run = killed_and_resumed()
    end_files(run, 1).update(files_of(4) | files_of(8) | {"x/y.tmp": [1, "x"]})
    foreign = run_of(*run.attempts, case=foreign_workload(scenario()))
    assert "temporary" in only(retention(foreign, baseline()), "retention").message


def test_a_rotated_checkpoint_is_not_owed_when_the_newer_ones_are_damaged_later():
    """All that is left is broken by the harness: the one that rotation had removed before is not the trainer's loss."""
    run = killed_and_resumed()
    del end_files(run, 0)[name_of(4)]
    refused = run.attempts[1]
    refused.supervisor[:] = [event for event in refused.supervisor if event["event"] != "committed"]
    refused.operations.clear()
    for number in (8, 12):
        damaged = {"event": "damaged", "path": name_of(number), "checkpoint": name_of(number), "step": number, "unchanged": False}
        refused.supervisor.insert(0, damaged)
    end_files(run, 1).clear()
    assert retention(run, baseline()) == []


def left_behind(**files):
    """A foreign job whose uninterrupted run keeps the last two checkpoints, and what stands there after its resume."""
    run = killed_and_resumed()
    listing = end_files(run, 1)
    listing.clear()
    listing.update(files_of(20) | files_of(24) | files)
    return run_of(*run.attempts, case=foreign_workload(scenario()))


KEEPS_TWO = replace(baseline(), files={path: tuple(content) for path, content in (files_of(20) | files_of(24)).items()})


def test_a_foreign_job_removes_after_a_resume_what_its_uninterrupted_run_removes():
    assert retention(left_behind(), KEEPS_TWO) == []
    finding = only(retention(left_behind(**files_of(12)), KEEPS_TWO), "retention")
    assert (finding.file, finding.attempt, finding.component) == (name_of(12), 1, "checkpoint-files")
    assert "the uninterrupted run had removed it (1 such)" in finding.message


def test_what_was_never_saved_or_is_kept_anyway_is_not_left_behind():
    assert retention(left_behind(**{"notes.txt": [1, "x"]}), KEEPS_TWO) == []
    assert retention(left_behind(**files_of(12)), replace(baseline(), files=None)) == []
    everything = {path: (1, "x") for batch in range(4, 25, 4) for path in files_of(batch)}
    assert retention(left_behind(**files_of(12)), replace(baseline(), files=everything)) == []


def test_removing_follows_a_save_and_what_is_damaged_is_nobody_s():
    run = left_behind(**files_of(12))
    run.attempts[1].supervisor[:] = [r for r in run.attempts[1].supervisor if r["event"] != "committed"]
    assert retention(run, KEEPS_TWO) == []
    run = left_behind(**files_of(12))
    hit = {"event": "damaged", "fault": "truncate newest to 50%", "path": name_of(12), "checkpoint": name_of(12)}
    run.attempts[1].supervisor.insert(0, hit)
    assert retention(run, KEEPS_TWO) == []


@pytest.mark.parametrize("newer", [True, False])
def test_a_job_that_fails_may_have_replaced_the_last_one_without_a_word(newer):
    run = killed_and_resumed()
    run = run_of(*run.attempts, case=foreign_workload(scenario()))
    last = run.attempts[1]
    for log in last.ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "end"]
    last.supervisor[:] = [r for r in last.supervisor if not (r["event"] == "committed" and r["step"] == 24)]
    end_files(run, 1).pop(name_of(20))
    if not newer:
        end_files(run, 1).pop(name_of(24))
    assert ("last-good-lost" in kinds(retention(run, baseline()))) is not newer


def replaced_unreported(tmp_path, *after, rotated=True, name="step-00000012.pt"):
    """A foreign job commits batch 8, removes it for that of batch 12, is cut before it says so; and what comes after that."""
    first = attempt(0, 1, 12, path=tmp_path)
    first.supervisor[:] = [r for r in first.supervisor if not (r["event"] == "committed" and r["step"] == 12)]
    for log in first.ranks.values():
        log.records[:] = [r for r in log.records if (r["event"], r.get("moment"), r.get("step")) != ("save", "end", 12)]
    run = run_of(first, *after, case=foreign_workload(scenario()))
    listing = end_files(run, 0)
    listing.clear()
    listing.update({name: [1012, "0" * 64]} | ({} if rotated else files_of(8)))
    return run


def deleted(*batches, index=1, **how):
    hit = {"event": "damaged", "fault": f"delete every attempt {index}", "size_after": 0, "unchanged": False}
    records = tuple({**hit, "path": name_of(batch), "checkpoint": name_of(batch), "step": batch} for batch in batches)
    return attempt(index, how.pop("first", 1), how.pop("last", STEPS), supervisor=records, **how)


@pytest.mark.parametrize("resumed", [0, None])
def test_what_took_the_place_of_the_last_one_may_be_deleted_before_anybody_has_read_it(tmp_path, resumed):
    """Whether the one of batch 12 was whole nobody will know: the next attempt begins anew, or refuses."""
    last = STEPS if resumed == 0 else 0
    assert retention(replaced_unreported(tmp_path, deleted(12, path=tmp_path, resumed=resumed, last=last)), baseline()) == []
    # Nothing was done to it, and yet the job did not go on from it; or something was done to another one.
    for hit in ((), (4,)):
        run = replaced_unreported(tmp_path, deleted(*hit, path=tmp_path, resumed=resumed, last=last))
        assert only(retention(run, baseline()), "last-good-lost").file == name_of(8)
    # What stands there is no checkpoint that a save was begun for.
    run = replaced_unreported(tmp_path, deleted(12, path=tmp_path, resumed=resumed, last=last), name="next.tmp")
    assert "last-good-lost" in kinds(retention(run, baseline()))


@pytest.mark.parametrize(("expect", "found"), [("refuses", []), ("resumes", ["last-good-lost"])])
def test_a_job_that_is_to_refuse_does_not_say_what_had_taken_the_place_of_the_last_one(tmp_path, expect, found):
    run = replaced_unreported(tmp_path, attempt(1, 1, 0, path=tmp_path, resumed=None))
    run = run_of(*run.attempts, case=run.plan.scenario.model_copy(update={"expect": expect}))
    assert kinds(retention(run, baseline())) == found
    end_files(run, 0).clear()
    assert kinds(retention(run, baseline())) == ["last-good-lost"]


def test_what_has_been_deleted_after_a_restart_that_began_anew_explains_nothing(tmp_path):
    anew = attempt(1, 1, 2, path=tmp_path, resumed=0)
    third = deleted(12, index=2, path=tmp_path, resumed=0, ended=True)
    run = replaced_unreported(tmp_path, anew, third)
    assert only(retention(run, baseline()), "last-good-lost").attempt == 0


def test_a_save_of_an_earlier_attempt_may_have_taken_its_place(tmp_path):
    """The save was begun in the first attempt; the second removes the older one, and is cut before it trains."""
    second = attempt(1, 13, 12, path=tmp_path, resumed=12)
    run = replaced_unreported(tmp_path, second, deleted(12, index=2, path=tmp_path, resumed=0), rotated=False)
    end_files(run, 1).clear()
    end_files(run, 1)[name_of(12)] = [1012, "0" * 64]
    assert retention(run, baseline()) == []
    end_files(run, 1).clear()
    assert only(retention(run, baseline()), "last-good-lost").attempt == 1


@pytest.mark.parametrize(("batch", "lost"), [(12, False), (4, True)])
def test_what_a_job_went_on_with_is_said_by_the_first_attempt_that_says_anything(tmp_path, batch, lost):
    """The attempt between died before it said where it began."""
    silent = attempt(1, 1, 0, path=tmp_path, resumed=None)
    third = attempt(2, batch + 1, STEPS, path=tmp_path, resumed=batch, ended=True)
    run = replaced_unreported(tmp_path, silent, third)
    for log in third.ranks.values():
        log.of("resume")[0].update(batch=batch, told_by="model+optimizer")
    assert ("last-good-lost" in kinds(retention(run, baseline()))) is lost


@pytest.mark.parametrize("rest", [("rank0.bin",), ("rank0.bin", "rank1.bin"), ()])
def test_a_rotation_that_was_cut_half_way_owes_nothing_of_what_it_was_removing(tmp_path, rest):
    """Three are kept; the one of batch 4 was being removed for that of batch 16. Later damage does not bring it back."""
    names = [name_of(batch, "sharded") for batch in (8, 12, 16)]
    hits = tuple(
        {"event": "damaged", "fault": "delete every attempt 1", "path": f"{name}/{file}", "checkpoint": name, "unchanged": False}
        for name in names
        for file in ("rank0.bin", "rank1.bin", "manifest.json")
    )
    second = attempt(1, 1, 0, path=tmp_path, resumed=None, format="sharded", supervisor=hits)
    run = run_of(attempt(0, 1, 16, path=tmp_path, format="sharded"), second, case=scenario(format="sharded"))
    whole = files_of(4, "sharded")
    end_files(run, 0).update({f"{name_of(4, 'sharded')}/{file}": whole[f"{name_of(4, 'sharded')}/{file}"] for file in rest})
    end_files(run, 1).clear()
    assert retention(run, baseline()) == []


@pytest.mark.parametrize(
    ("rest", "pattern", "gone"),
    [
        (("rank0.bin",), "*/manifest.json", True),
        (("rank0.bin", "manifest.json"), "*/manifest.json", False),
        (("rank0.bin",), None, False),
        ((), None, True),
    ],
)
def test_of_a_save_that_never_returned_the_commit_mark_tells_whether_its_rotation_has_begun(rest, pattern, gone):
    """Nobody knows what the one of batch 4 held, but it was a checkpoint, until its manifest was removed for that of batch 8."""
    old, new = Commit(4, name_of(4, "sharded"), 0, None), Commit(8, name_of(8, "sharded"), 1, files_of(8, "sharded"))
    listing = {**files_of(8, "sharded"), **{f"{old.name}/{file}": [1, "0" * 64] for file in rest}}
    assert _rotated([old, new], listing, pattern) == [old] * gone


def test_half_of_the_newest_is_a_loss_and_so_is_half_of_an_older_one_if_the_newer_is_not_whole(tmp_path):
    run = run_of(attempt(0, 1, 14, path=tmp_path, format="sharded"), case=scenario(format="sharded"))
    del end_files(run, 0)["step-00000012/rank1.bin"]
    assert only(retention(run, baseline()), "last-good-lost").file == "step-00000012/rank1.bin"
    # The harness breaks what is newer in the attempt that follows, and the older one, which still stood, is now half gone.
    hit = {"event": "damaged", "fault": "x", "path": "step-00000012/rank0.bin", "checkpoint": "step-00000012", "unchanged": False}
    second = attempt(1, 9, 10, path=tmp_path, resumed=8, before=(4, 8), format="sharded", supervisor=(hit,))
    run = run_of(attempt(0, 1, 14, path=tmp_path, format="sharded"), second, case=scenario(format="sharded"))
    del end_files(run, 1)["step-00000008/rank1.bin"]
    assert only(retention(run, baseline()), "last-good-lost").file == "step-00000008/rank1.bin"
