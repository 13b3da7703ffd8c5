from __future__ import annotations

from dataclasses import replace

import pytest
from histories import (
    KILL,
    STEPS,
    attempt,
    baseline,
    files_of,
    fired,
    foreign_workload,
    killed_and_resumed,
    name_of,
    only,
    run_of,
    said,
    scenario,
)

from harness.oracle.history import History
from harness.oracle.progress import progress


def rename(batch, tampered=None, rank=0, format="sharded"):
    target = name_of(batch, format) + ("/manifest.json" if format == "sharded" else "")
    facts = {"rank": rank, "path": f"{target}.tmp", "to": target, "tampered": tampered, "time_s": 1000.0 + batch + 0.25}
    return {"event": "operation", "operation": "rename", "call": "rename", **facts}


def damaged(batch, fault="truncate newest to 50%", **facts):
    name = name_of(batch)
    return {"event": "damaged", "fault": fault, "path": name, "checkpoint": name, "step": batch, "unchanged": False, **facts}


def two(tmp_path, resumed, last=14, **how):
    first = attempt(0, 1, last, path=tmp_path, **how.pop("first", {}))
    second = attempt(1, resumed + 1, STEPS, path=tmp_path, resumed=resumed, ended=True, **how.pop("second", {}))
    return run_of(first, second, case=scenario(**how))


def test_the_newest_checkpoint_passes():
    run = killed_and_resumed()
    assert progress(run, baseline()) == []
    resume = History(run).resume_of(1)
    assert (resume.step, resume.batch, resume.lost) == (12, 12, 2)


def test_an_older_checkpoint_is_lost_work(tmp_path):
    finding = only(progress(two(tmp_path, 8), baseline()), "lost-work")
    assert (
        finding.message == "attempt 1 resumed from step-00000008.pt, losing 6 steps; step-00000012.pt was committed and undamaged"
    )
    assert (finding.step, finding.file, finding.component) == (8, "step-00000012.pt", "checkpoint-files")


def test_a_checkpoint_that_its_own_rotation_has_removed_is_owed_and_said_to_be_gone(tmp_path):
    """Names are sorted as texts, so that step-12 comes before step-4 and is removed as the oldest."""
    run = two(tmp_path, 8)
    for record in run.attempts[0].of("committed"):
        if record["step"] == 12:
            record["files"] = {}
    finding = only(progress(run, baseline()), "lost-work")
    assert finding.message.endswith("step-00000012.pt was saved, and the trainer had removed it again when that save was done")


def test_a_fresh_start_over_a_good_checkpoint_is_restarted_from_scratch(tmp_path):
    finding = only(progress(two(tmp_path, 0), baseline()), "restarted-from-scratch")
    assert "attempt 1 started from scratch, losing 14 steps" in finding.message


def test_a_fresh_start_with_nothing_committed_passes(tmp_path):
    assert progress(two(tmp_path, 0, last=3), baseline()) == []


def test_the_trainers_own_reason_is_quoted_where_the_harness_did_no_damage(tmp_path):
    run = two(tmp_path, 8)
    said(run, 1, 0, "resume")["skipped"] = [{"path": "step-00000012.pt", "reason": "sha256 mismatch"}]
    finding = only(progress(run, baseline()), "lost-work")
    assert finding.message.endswith("step-00000012.pt was committed but is not complete: sha256 mismatch")


@pytest.mark.parametrize(
    "tampered", [None, "sigkill rank 0 after rename manifest.json", "sigterm rank 0 before rename manifest.json"]
)
def test_a_rename_commits_although_save_never_returned(tmp_path, tampered):
    how = {"format": "sharded"}
    run = two(tmp_path, 8, last=11, first=how, second=how, **how)
    run.attempts[0].operations.append(rename(12, tampered))
    run.attempts[0].supervisor[:] = [r for r in run.attempts[0].supervisor if r.get("moment") != "end"]
    assert only(progress(run, baseline()), "lost-work").file == "step-00000012"


@pytest.mark.parametrize(
    "tampered",
    [
        "sigkill rank 0 before rename manifest.json",
        "sigkill all ranks before rename manifest.json",
        "ENOSPC rank 0 on rename manifest.json",
        "words of another version",
    ],
)
def test_a_rename_that_never_happened_commits_nothing(tmp_path, tampered):
    how = {"format": "sharded"}
    run = two(tmp_path, 8, last=11, first=how, second=how, **how)
    run.attempts[0].operations.append(rename(12, tampered))
    assert progress(run, baseline()) == []


def test_a_rename_whose_target_is_not_there_in_the_end_commits_nothing(tmp_path):
    how = {"format": "sharded"}
    run = two(tmp_path, 8, last=11, first=how, second=how, **how)
    run.attempts[0].operations.append(rename(12))
    assert progress(run, baseline()) == []  # killed between the answer and the call


def test_a_rename_of_something_else_or_of_a_foreign_trainer_commits_nothing(tmp_path):
    run = two(tmp_path, 8, last=11)
    run.attempts[0].supervisor[:] = [r for r in run.attempts[0].supervisor if r.get("moment") != "end"]
    run.attempts[0].operations.extend([rename(12), {"event": "mark", "rank": 0, "what": "batch"}])
    assert progress(run, baseline()) == []
    run.attempts[0].operations.append(rename(12, format="single"))
    assert progress(run, baseline())
    foreign = run_of(*run.attempts, case=foreign_workload(scenario()))
    assert progress(foreign, baseline()) == []


def test_a_damaged_newest_explains_the_older_one(tmp_path):
    run = two(tmp_path, 8, second={"supervisor": (damaged(12),)})
    assert progress(run, baseline()) == []


def test_behind_a_damaged_newest_the_newest_undamaged_one_counts(tmp_path):
    run = two(tmp_path, 4, second={"supervisor": (damaged(12),)})
    assert only(progress(run, baseline()), "lost-work").file == "step-00000008.pt"


def test_damage_that_changed_nothing_explains_nothing(tmp_path):
    run = two(tmp_path, 8, second={"supervisor": (damaged(12, unchanged=True),)})
    assert only(progress(run, baseline()), "lost-work").file == "step-00000012.pt"


def test_a_checkpoint_that_was_saved_again_is_damaged_no_more(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 9, 14, path=tmp_path, resumed=8, supervisor=(damaged(12),))
    third = attempt(2, 9, STEPS, path=tmp_path, resumed=8, ended=True)
    assert only(progress(run_of(first, second, third), baseline()), "lost-work").attempt == 2


def test_ranks_that_resume_from_different_steps(tmp_path):
    run = killed_and_resumed()
    said(run, 1, 0, "resume").update(step=16, checkpoint=name_of(16))
    finding = only(progress(run, baseline()), "state-lost")
    assert (finding.component, finding.rank) == ("counters", 1)
    assert finding.message == "rank 1 resumed from step 12 and rank 0 from step 16, in attempt 1; expected one and the same"


def test_saves_that_are_not_made_when_due_are_lost_work(tmp_path):
    run = two(tmp_path, 8)
    first = run.attempts[0]
    first.supervisor[:] = [r for r in first.supervisor if r.get("step") != 12]
    finding = only(progress(run, baseline()), "lost-work")
    assert finding.message == (
        "attempt 1 resumed from step 8, losing 6 steps; no newer checkpoint had been committed although one is due every 4"
    )


def test_a_save_that_the_harness_made_fail_is_not_held_against_the_trainer(tmp_path):
    fault = "ENOSPC rank 0 on write *.tmp occurrence 9"
    run = two(tmp_path, 8, first={"supervisor": (fired(fault, 0),)}, faults=(fault, KILL))
    first = run.attempts[0]
    first.supervisor[:] = [r for r in first.supervisor if r.get("step") != 12]
    first.ranks[0].records.append(
        {"event": "save", "moment": "failed", "step": 12, "checkpoint": name_of(12), "error": "no space"}
    )
    assert progress(run, baseline()) == []


def test_with_skipped_batches_checkpoints_are_ordered_by_batches_not_by_steps(tmp_path):
    skips = dict.fromkeys(range(9, 13), "non_finite_grad")
    how = {"skips": skips}
    good = two(tmp_path, 12, first=how, second=how)
    assert progress(good, baseline(**how)) == []
    assert (History(good).resume_of(1).step, History(good).resume_of(1).lost) == (8, 2)
    worse = two(tmp_path, 8, first=how, second=how)
    assert only(progress(worse, baseline(**how)), "lost-work").file == "step-00000012.pt"


def test_an_attempt_that_died_before_its_first_batch_does_not_hide_what_was_done(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 13, 12, path=tmp_path, resumed=None)
    third = attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True)
    history = History(run_of(first, second, third))
    assert (history.resume_of(1), history.resume_of(2).lost) == (None, 2)


@pytest.mark.parametrize("hit", [12, 4])
def test_what_a_foreign_job_had_replaced_is_not_owed_once_the_harness_has_deleted_that_unread(tmp_path, hit):
    """Cut after it had removed the one of batch 8 for the one of batch 12, and before it had said so."""
    first = attempt(0, 1, 12, path=tmp_path)
    first.supervisor[:] = [r for r in first.supervisor if not (r["event"] == "committed" and r["step"] == 12)]
    first.of("files", moment="end")[0]["files"] = files_of(12)
    second = attempt(1, 1, STEPS, path=tmp_path, resumed=0, ended=True, supervisor=(damaged(hit, "delete every attempt 1"),))
    found = progress(run_of(first, second, case=foreign_workload(scenario())), baseline())
    assert [finding.kind for finding in found] == ([] if hit == 12 else ["restarted-from-scratch"])


def failed_save_then_early_death(tmp_path, fires=True, trains=False):
    """A save of attempt 0 fails; attempt 1 dies before it says where it began, or after batch 15; then it goes on."""
    fault = "ENOSPC rank 0 on write *.tmp occurrence 9"
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired(fault, 0),) if fires else ())
    first.supervisor[:] = [r for r in first.supervisor if r.get("step") != 12]
    failed = {"event": "save", "rank": 0, "moment": "failed", "step": 12, "checkpoint": name_of(12), "error": "no space"}
    first.ranks[0].records.append(failed)
    second = attempt(1, 9, 15 if trains else 8, path=tmp_path, resumed=8 if trains else None)
    second.supervisor[:] = [r for r in second.supervisor if r["event"] != "committed"]
    third = attempt(2, 9, STEPS, path=tmp_path, resumed=8, ended=True)
    return run_of(first, second, third, case=scenario(faults=(fault, KILL)))


def test_a_save_that_failed_before_an_attempt_that_died_early_is_not_held_against_the_trainer(tmp_path):
    assert progress(failed_save_then_early_death(tmp_path), baseline()) == []


def test_a_save_that_failed_excuses_no_work_that_was_done_after_it_and_none_without_a_fault(tmp_path):
    found = progress(failed_save_then_early_death(tmp_path, trains=True), baseline())
    assert [(f.kind, f.attempt) for f in found] == [("lost-work", 2)]
    found = progress(failed_save_then_early_death(tmp_path, fires=False), baseline())
    assert [(f.kind, f.attempt) for f in found] == [("lost-work", 2)]


def beside_a_best(tmp_path, best=400, with_it=(), last_at=8, name="best.pt"):
    """A foreign job that keeps last.pt every eighth batch and best.pt every fourth, killed after batch 14, and its baseline.

    Args:
        tmp_path: a folder.
        best: bytes of best.pt; last.pt has 1200.
        with_it: what else is written in each save of best.pt, and nobody resumes from.
        last_at: the step at which the uninterrupted run saves last.pt.
        name: what best.pt is called.
    """
    content = {"last.pt": (1200, "aa"), name: (best, "bb")}
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 9, STEPS, path=tmp_path, resumed=8, ended=True)
    named = {4: name, 8: "last.pt", 12: name}
    for record in [*first.supervisor, *(r for log in first.ranks.values() for r in log.records)]:
        if record["event"] in ("committed", "save") and record["step"] in named:
            own = named[record["step"]]
            also = [one for one in with_it if own == name]
            record |= {"checkpoint": own, "also": also}
            record |= {"files": {own: content[own]} | dict.fromkeys(also, (1200, "cc"))} if record["event"] == "committed" else {}
    first.of("files", moment="end")[0]["files"] = content | dict.fromkeys(with_it, (1200, "cc"))
    for record in (r for log in second.ranks.values() for r in log.of("resume")):
        record |= {"checkpoint": "last.pt", "batch": 8}
    golden = baseline()
    said = [
        {"event": "save", "moment": "end", "step": step, "checkpoint": own, "also": [one for one in with_it if own == name]}
        for step, own in named.items()
    ]
    said[1]["step"] = last_at
    golden.ranks[0].records[:] = [*(r for r in golden.ranks[0].records if r["event"] != "save"), *said]
    case = foreign_workload(scenario())
    case = case.model_copy(update={"workload": case.workload.model_copy(update={"save_every": None})})
    return run_of(first, second, case=case), replace(golden, files=content | dict.fromkeys(with_it, (1200, "cc")))


def test_the_best_weights_alone_are_no_checkpoint_that_is_owed(tmp_path):
    run, golden = beside_a_best(tmp_path)
    assert progress(run, golden) == []


@pytest.mark.parametrize(
    "how", [{"best": 1200, "name": "asked.pt"}, {"with_it": ("optimizer.pt",), "name": "model.pt"}, {"last_at": STEPS}]
)
def test_a_whole_checkpoint_under_another_name_is_owed_and_so_is_one_in_several_files(tmp_path, how):
    run, golden = beside_a_best(tmp_path, **how)
    assert only(progress(run, golden), "lost-work").file == how.get("name", "best.pt")
