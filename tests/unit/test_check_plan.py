"""The default plan of `harness check -- COMMAND`, on hand-written logs of uninterrupted runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import check_plan
from harness.check_plan import Job, Saved
from harness.grammar import parse
from harness.store import Baseline, RankLog
from harness.trace import Mark, Operation, SaveWindow, Trace


def batch(step, scale=None):
    return {
        "event": "batch",
        "batch": step,
        "step": step,
        "epoch": 0,
        "batch_in_epoch": step,
        "tag": "STEP",
        "loss": "0x1p+0",
        "global_loss": "0x1p+0",
        "scale": scale,
    }


def saved(step, name="ckpt.pt"):
    return {"event": "save", "moment": "end", "step": step, "checkpoint": name}


def log(steps=12, every=4, late=0, scale=None):
    """A run that saves every so many steps; that a save is done is reported before the next batch, or `late` batches later."""
    records = []
    for step in range(1, steps + 1):
        records.append(batch(step, scale))
        done = step - late
        if done > 0 and done % every == 0:
            records.append(saved(done))
    return records


def job(ranks=1, **shape):
    return Job.of(Baseline(ranks, {rank: RankLog(rank, log(**shape)) for rank in range(ranks)}))


def sentences(cases):
    return [sentence for case in cases for sentence in case.faults]


def test_a_job_is_read_off_its_logs():
    assert job() == Job(
        1, 12, 12, (Saved("ckpt.pt", 4, 5), Saved("ckpt.pt", 8, 9), Saved("ckpt.pt", 12, None)), False, tuple(range(1, 13))
    )
    assert job(late=1).saves[0] == Saved("ckpt.pt", 4, 6)
    assert job(scale="0x1p+10").scaled
    assert Job.of(Baseline(0, {})) == Job(0, 0, 0, (), False)


def test_kills_come_after_a_save_between_two_and_before_the_first():
    cases = check_plan.first_cases(job())
    assert [(case.part, case.owed) for case in cases] == [
        ("control", False),
        ("kill between two saves", True),
        ("kill between two saves", True),
        ("kill between two saves", False),
        ("SIGTERM", True),
    ]
    assert sentences(cases) == [
        "sigkill all ranks at step 9 by rank 0",
        "sigkill all ranks at step 10 by rank 0",
        "sigkill all ranks at step 2 by rank 0",
        "sigterm all ranks at step 10 by rank 0",
    ]


def test_the_last_kill_comes_when_old_checkpoints_have_been_removed():
    kills = [case for case in check_plan.first_cases(job(steps=20)) if case.part == check_plan.KILLS]
    assert [(case.faults[0], case.owed) for case in kills] == [
        ("sigkill all ranks at step 9 by rank 0", True),
        ("sigkill all ranks at step 10 by rank 0", True),
        ("sigkill all ranks at step 17 by rank 0", True),
        ("sigkill all ranks at step 2 by rank 0", False),
    ]
    assert job(steps=20).latest == Saved("ckpt.pt", 16, 17)
    assert job(steps=4).latest is None


def test_a_job_of_whose_saves_nothing_is_known_is_killed_early_and_late():
    cases = check_plan.first_cases(job(every=100))
    kills = [f"sigkill all ranks at step {step} by rank 0" for step in (11, 2)]
    assert sentences(cases) == [*kills, "sigterm all ranks at step 1 by rank 0"]
    # If it then begins anew although files stand there, it never resumes.
    assert [case.owed for case in cases if case.faults[:1] == (kills[0],)] == [True]
    assert check_plan.later_cases(job(every=100), (1,)) == []


def test_a_log_with_few_lines_has_no_kill_twice_and_no_word_of_saves():
    told = [batch(step) for step in (10, 20)]
    cases = check_plan.first_cases(Job.of(Baseline(1, {0: RankLog(0, told)})))
    assert sentences(cases) == ["sigkill all ranks at step 10 by rank 0", "sigterm all ranks at step 10 by rank 0"]
    (alone,) = [
        case for case in check_plan.first_cases(Job.of(Baseline(1, {0: RankLog(0, told[:1])}))) if case.part == check_plan.KILLS
    ]
    assert alone.title == "killed at step 10"


def test_kills_are_at_steps_that_the_log_tells_of():
    sparse = replace(job(every=100), told=(4, 8, 12))
    kills = [f"sigkill all ranks at step {step} by rank 0" for step in (8, 4)]
    assert sentences(check_plan.first_cases(sparse)) == [*kills, "sigterm all ranks at step 4 by rank 0"]


def test_a_save_after_which_nothing_is_trained_is_not_the_one_to_be_killed_after():
    assert job(steps=8).attacked == Saved("ckpt.pt", 4, 5)
    assert job(steps=4).attacked is None


def test_what_one_rank_without_a_scaler_has_no_use_for_is_left_out():
    parts = {case.part for case in check_plan.later_cases(job(), ())}
    assert parts == {"a second interruption"}
    parts = {case.part for case in check_plan.later_cases(job(ranks=2, scale="0x1p+10"), (1, 4))}
    assert parts == {"a second interruption", "a rank that hangs", "an overflow batch", "other numbers of ranks"}


def test_other_numbers_of_ranks():
    assert check_plan.other_sizes(2, None) == (1, 4)
    assert check_plan.other_sizes(1, None) == (2,)
    assert check_plan.other_sizes(2, (3, 2, 3)) == (3,)
    (case,) = [case for case in check_plan.later_cases(job(ranks=2), (4,)) if case.part == "other numbers of ranks"]
    assert (case.world_sizes, case.expect) == ((2, 4), "resumes-or-refuses")


def test_more_ranks_than_the_memory_has_room_for_are_named():
    fit, notes = check_plan.fitting((1, 4), 2.0 * 2**30, 6.0 * 2**30)
    assert fit == (1,)
    assert notes == ["4 ranks: they would need 8.0 GiB, by the memory of a process of the undisturbed run; 6.0 GiB are free"]


def test_an_overflow_lies_before_a_save_and_the_kill_behind_it():
    (case,) = [case for case in check_plan.later_cases(job(scale="0x1p+10"), ()) if case.part == "an overflow batch"]
    assert case.faults == ("nonfinite-grad all ranks at batch 7", "sigkill all ranks at step 10 by rank 0")


def write(n, path="ckpt.pt.tmp", operation="write", to=None):
    return Operation(n, 0, n - 1, operation, operation, path, to, 10)


def trace(events):
    return Trace((), tuple(events), Path("data.bin"))


TWO_SAVES = [
    *(write(n) for n in (1, 2, 3)),
    write(4, operation="rename", to="ckpt.pt"),
    Mark(0, "save", "end", 4, "ckpt.pt"),
    *(write(n) for n in (5, 6, 7)),
    write(8, operation="fsync"),
    write(9, operation="rename", to="ckpt.pt"),
    Mark(0, "save", "end", 8, "ckpt.pt"),
]
FIRST, SECOND = SaveWindow("ckpt.pt", 0, 5, 4), SaveWindow("ckpt.pt", 5, 11, 10)


def test_a_restart_is_cut_in_the_middle_of_its_first_save():
    case = check_plan.cut_restart(trace(TWO_SAVES), [FIRST, SECOND], 9)
    assert case.faults[1] == "sigkill all ranks before write ckpt.pt.tmp occurrence 2 by rank 0 attempt 1"
    assert check_plan.cut_restart(trace(TWO_SAVES), [FIRST], 9) is None


def test_each_sort_of_operation_of_the_attacked_save_fails_once():
    assert sentences(check_plan.failing_operations(trace(TWO_SAVES), SECOND)) == [
        "ENOSPC rank 0 on write ckpt.pt.tmp occurrence 5",
        "EIO rank 0 on fsync ckpt.pt.tmp",
        "EIO rank 0 on rename ckpt.pt occurrence 2",
    ]


def test_numbers_in_names_are_left_open():
    assert check_plan.any_number("checkpoint-12/a b.pt") == "checkpoint-*/a*b.pt"
    assert check_plan.any_number("ckpt-0003-81f61c6a.pt") == "ckpt-*-*.pt", "a digest is another one in each file"
    assert check_plan.any_number("d/tmpx9_k2abq") == "d/tmp*"
    assert check_plan.any_number("decade-deadbeef/rank0.bin") == "decade-deadbeef/rank*.bin"


def operation(path="ckpt.pt.tmp", rank=0):
    return {"event": "operation", "operation": "write", "rank": rank, "path": path}


def test_the_second_request_comes_while_the_job_saves_for_the_first():
    done = {"event": "mark", "what": "batch", "step": 10}
    records = [operation(), operation(), done, operation(), operation(rank=1), operation(), operation()]
    case = check_plan.second_request(job(), records, 10)
    assert case.faults == (
        "sigterm all ranks at step 10 by rank 0",
        "sigterm all ranks before write ckpt.pt.tmp occurrence 4 by rank 0",
    )


def test_a_job_that_goes_on_is_asked_again_and_one_that_ends_at_once_is_not():
    assert check_plan.second_request(job(), [operation()], 12).faults[1] == "sigterm all ranks at step 11 by rank 0"
    assert check_plan.second_request(job(), [operation()], 10) is None


def test_damage_to_one_file_and_to_a_directory():
    assert sentences(check_plan.damages(job(), {"ckpt.pt": 10}, ["ckpt.pt", "log.txt"])) == []
    names = sentences(check_plan.damages(job(), {"ckpt.pt": 10}, ["ckpt.pt"]))
    assert names[1::2] == ["truncate newest to 50%", "flip newest at 60% bit 3"]
    saves = Job(1, 12, 12, (Saved("step-4", 4, 5), Saved("step-8", 8, 9)), False)
    files = {"step-8/model.pt": 100, "step-8/meta": 5}
    names = sentences(check_plan.damages(saves, files, ["step-4", "step-8"]))
    assert names[1::2] == ["truncate newest/model.pt to 50%", "flip newest/model.pt at 60% bit 3", "delete newest/meta"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shape", [{}, {"steps": 2, "every": 1}, {"late": 1}, {"every": 1, "scale": "0x1p+10"}, {"steps": 1}])
def test_every_sentence_is_of_the_grammar_and_within_the_job(ranks, shape):
    found = job(ranks, **shape)
    for sentence in sentences([*check_plan.first_cases(found), *check_plan.later_cases(found, ())]):
        fault = parse(sentence)
        assert str(fault) == sentence
        assert getattr(getattr(fault, "point", None), "step", 1) <= found.steps
