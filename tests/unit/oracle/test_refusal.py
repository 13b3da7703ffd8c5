from __future__ import annotations

import pytest
from histories import (
    STEPS,
    attempt,
    baseline,
    exited,
    fired,
    kinds,
    name_of,
    only,
    record,
    replace_exits,
    run_of,
    scenario,
)

from harness.oracle.refusal import refusal
from harness.scenario import Command

DAMAGE = "truncate every to 50%"
GOOD = "rank 0: refused: sha256 mismatch: /runs/x/checkpoints/step-00000012.pt: expected 9ac1, found 51e0\n"


def damaged(batch):
    name = name_of(batch)
    return {"event": "damaged", "fault": DAMAGE, "path": name, "checkpoint": name, "step": batch, "unchanged": False}


REFUSED = (exited(0, 3), exited(1, 3))


def refusing(tmp_path, text=GOOD, exits=REFUSED, **how):
    hits = tuple(damaged(batch) for batch in (4, 8, 12))
    how = {"first": 13, "last": 12, "resumed": None, "before": (4, 8, 12), "supervisor": hits, "exits": exits, **how}
    first = attempt(0, 1, 14, path=tmp_path, supervisor=(fired("sigkill all ranks at step 14", 0, step=14),))
    second = attempt(1, how.pop("first"), how.pop("last"), path=tmp_path, **how)
    second.path.mkdir(parents=True)
    (second.path / "rank-0.stderr").write_text(text)
    if how["resumed"] is None:
        for log in second.ranks.values():
            log.records.append({"event": "refuse", "rank": log.rank, "error": "sha256 mismatch"})
    return run_of(first, second, case=scenario(faults=("sigkill all ranks at step 14", DAMAGE), expect="refuses"))


def test_a_clear_refusal_passes(tmp_path):
    assert refusal(refusing(tmp_path), baseline()) == []


def test_a_refusal_of_another_world_size_need_not_name_a_file(tmp_path):
    assert refusal(refusing(tmp_path, "world_size mismatch: expected 3, found 2"), baseline()) == []


def test_where_files_were_damaged_one_of_them_must_be_named(tmp_path):
    run = refusing(tmp_path, "unknown schema: step-00000016.pt: expected ckpt.v1, found x", before=(4, 8, 12, 16))
    assert "does not say which file" in only(refusal(run, baseline()), "bad-refusal").message


def test_a_file_that_was_deleted_may_be_named(tmp_path):
    run = refusing(tmp_path, "file missing: step-00000012.pt: expected a file, found none", before=())
    assert refusal(run, baseline()) == []


def test_a_case_that_is_to_resume_is_not_judged_here(tmp_path):
    run = refusing(tmp_path)
    assert refusal(run_of(*run.attempts), baseline()) == []


def test_where_a_fault_did_not_fire_there_was_nothing_to_refuse(tmp_path):
    run = refusing(tmp_path, first=1, last=STEPS, resumed=0, ended=True, exits=None, supervisor=())
    assert refusal(run, baseline()) == []


def test_completing_on_damaged_files_is_corrupt_accepted(tmp_path):
    run = refusing(tmp_path, last=STEPS, resumed=12, ended=True, exits=None)
    finding = only(refusal(run, baseline()), "corrupt-accepted")
    assert (finding.file, finding.step, finding.attempt) == (name_of(12), 12, 1)


def test_completing_on_whole_files_is_a_bad_refusal(tmp_path):
    run = refusing(tmp_path, last=STEPS, resumed=12, ended=True, exits=None)
    case = scenario(faults=("sigkill all ranks at step 14",), expect="refuses", ranks=(2, 1))
    second = run.attempts[1]
    second.supervisor[:] = [r for r in second.supervisor if r["event"] != "damaged"]
    finding = only(refusal(run_of(*run.attempts, case=case), baseline()), "bad-refusal")
    assert finding.message == "attempt 1 resumed from step-00000012.pt; expected a refusal"


def test_training_from_scratch_is_no_refusal(tmp_path):
    run = refusing(tmp_path, first=1, last=STEPS, resumed=0, ended=True, exits=None)
    only(refusal(run, baseline()), "restarted-from-scratch")


def test_training_without_a_word_is_no_refusal(tmp_path):
    run = refusing(tmp_path, last=14)
    assert "trained without having said from where" in only(refusal(run, baseline()), "bad-refusal").message
    run = refusing(tmp_path / "2", ended=True, exits=None)
    assert "ended with exit code 0" in only(refusal(run, baseline()), "bad-refusal").message


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("refused: step-00000012.pt: found 51e0", "expected"),
        ("refused: step-00000012.pt: expected 9ac1", "found"),
        ("refused: expected 9ac1, found 51e0", "which file"),
        ("", "expected and found and which file"),
    ],
)
def test_a_refusal_must_say_file_expected_and_found(tmp_path, text, lacks):
    finding = only(refusal(refusing(tmp_path, text), baseline()), "bad-refusal")
    assert f"does not say {lacks}: " in finding.message


def test_a_refusal_that_was_never_logged(tmp_path):
    run = refusing(tmp_path)
    for log in run.attempts[1].ranks.values():
        log.records.pop()
    assert only(refusal(run, baseline()), "bad-refusal").message == "no rank of attempt 1 logged a refusal"


@pytest.mark.parametrize("bad", [exited(1, 0), exited(1, None, "SIGSEGV", "crashed"), None])
def test_every_rank_must_end_with_an_exit_code_other_than_0(tmp_path, bad):
    run = refusing(tmp_path)
    replace_exits(run, 1, exited(0, 3), *([bad] if bad else []))
    finding = only(refusal(run, baseline()), "bad-refusal")
    assert finding.rank == 1
    assert "expected an exit code other than 0" in finding.message


def test_a_peer_that_the_harness_ended_and_a_hang_are_not_blamed_here(tmp_path):
    for kind in ("peer-died", "hang"):
        run = refusing(tmp_path / kind)
        replace_exits(run, 1, exited(0, 3), exited(1, None, "SIGKILL", kind))
        assert refusal(run, baseline()) == []


def test_a_foreign_death_and_an_attempt_that_was_cut_short_are_not_judged(tmp_path):
    run = refusing(tmp_path, last=14)
    replace_exits(run, 1, exited(0, None, "SIGKILL", "foreign-death"))
    assert refusal(run, baseline()) == []
    run = refusing(tmp_path / "2", last=14)
    run.attempts[1].supervisor.pop()
    assert refusal(run, baseline()) == []


@pytest.mark.parametrize(("change", "word"), [("gone", "gone"), ("new", "new"), ("changed", "changed")])
def test_a_refusal_must_touch_nothing(tmp_path, change, word):
    run = refusing(tmp_path)
    files = record(run, 1, "files", moment="end")["files"]
    if change == "gone":
        del files[name_of(12)]
    else:
        files["x.tmp" if change == "new" else name_of(12)] = [1, "other"]
    finding = only(refusal(run, baseline()), "bad-refusal")
    assert finding.message.startswith("the refusal changed the checkpoint directory: ")
    assert f"is {word} (1 of 3 files)" in finding.message


def test_files_that_were_not_recorded_are_not_comparable(tmp_path):
    run = refusing(tmp_path)
    run.attempts[1].supervisor.remove(record(run, 1, "files", moment="end"))
    assert kinds(refusal(run, baseline())) == ["not-comparable"]


@pytest.mark.parametrize(("text", "found"), [(GOOD, []), ("ValueError: no\n", ["bad-refusal"])])
@pytest.mark.parametrize("silent", [True, False])
def test_a_command_that_is_watched_says_what_is_wrong_on_stderr_only(tmp_path, text, found, silent):
    run = refusing(tmp_path, text)
    if silent:
        run.attempts[1].ranks.clear()  # the probe begins with the first batch
    workload = Command(command=("python", "train.py"), probe=True)
    case = scenario(faults=("sigkill all ranks at step 14", DAMAGE), expect="refuses").model_copy(update={"workload": workload})
    for log in run.attempts[1].ranks.values():
        log.records[:] = [r for r in log.records if r["event"] != "refuse"]
    assert kinds(refusal(run_of(*run.attempts, case=case), baseline())) == found
