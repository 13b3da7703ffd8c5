from __future__ import annotations

from histories import STEPS, attempt, baseline, files_of, killed_and_resumed, name_of, only, record, run_of, said, scenario

from harness.oracle.integrity import integrity


def damaged(path, fault="flip newest at 50%", unchanged=False):
    name = path.split("/")[0]
    return {"event": "damaged", "fault": fault, "path": path, "checkpoint": name, "step": 0, "unchanged": unchanged}


def resumed(tmp_path, batch, *records, format="single", skipped=()):
    how = {"path": tmp_path, "format": format}
    first = attempt(0, 1, 14, **how)
    second = attempt(1, batch + 1, STEPS, resumed=batch, ended=True, before=(4, 8, 12), supervisor=records, **how)
    run = run_of(first, second, case=scenario(format=format))
    said(run, 1, 0, "resume")["skipped"] = [{"path": path, "reason": "sha256 mismatch"} for path in skipped]
    return run


def test_without_damage_nothing_is_to_be_said():
    assert integrity(killed_and_resumed(), baseline()) == []


def test_a_damaged_checkpoint_that_was_loaded_is_corrupt_accepted(tmp_path):
    run = resumed(tmp_path, 12, damaged("step-00000012/rank1.bin"), format="sharded")
    found = integrity(run, baseline())
    assert [f.kind for f in found] == ["corrupt-accepted", "corrupt-accepted"]
    assert (found[0].file, found[0].step, found[0].attempt) == ("step-00000012/rank1.bin", 12, 1)
    assert "rank 0 resumed from step-00000012 in attempt 1, although step-00000012/rank1.bin had been damaged" in found[0].message


def test_damage_that_changed_nothing_may_be_loaded(tmp_path):
    assert integrity(resumed(tmp_path, 12, damaged(name_of(12), unchanged=True)), baseline()) == []


def test_a_damaged_checkpoint_that_was_skipped_and_named_passes(tmp_path):
    assert integrity(resumed(tmp_path, 8, damaged(name_of(12)), skipped=(name_of(12),)), baseline()) == []


def test_a_damaged_checkpoint_that_was_skipped_in_silence(tmp_path):
    finding = only(integrity(resumed(tmp_path, 8, damaged(name_of(12))), baseline()), "bad-refusal")
    assert finding.message == "attempt 1 passed over step-00000012.pt, where step-00000012.pt had been damaged, without naming it"


def test_a_damaged_checkpoint_older_than_the_one_resumed_from_need_not_be_seen(tmp_path):
    assert integrity(resumed(tmp_path, 12, damaged(name_of(8))), baseline()) == []


def test_a_checkpoint_that_was_made_invisible_need_not_be_named(tmp_path):
    gone = resumed(tmp_path, 8, damaged(name_of(12), "delete newest"))
    record(gone, 1, "files", moment="begin")["files"] = files_of(4) | files_of(8)
    assert integrity(gone, baseline()) == []
    hidden = damaged("step-00000012/manifest.json", "delete newest/manifest.json")
    assert integrity(resumed(tmp_path, 8, hidden, format="sharded"), baseline()) == []
    shard = damaged("step-00000012/rank0.bin", "delete newest/rank0.bin")
    only(integrity(resumed(tmp_path, 8, shard, format="sharded"), baseline()), "bad-refusal")


def test_a_checkpoint_that_its_trainer_has_begun_to_replace_is_invisible(tmp_path):
    """Its number came again: the manifest went first, and the disk refused what was to follow."""
    run = resumed(tmp_path, 8, damaged("step-00000012/rank1.bin"), format="sharded")
    only(integrity(run, baseline()), "bad-refusal")
    del record(run, 1, "files", moment="begin")["files"]["step-00000012/manifest.json"]
    assert integrity(run, baseline()) == []


def test_a_checkpoint_that_was_saved_again_may_be_loaded(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 9, 14, path=tmp_path, resumed=8, supervisor=(damaged(name_of(12)),))
    third = attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True)
    run = run_of(first, second, third)
    said(run, 1, 1, "resume")["skipped"] = [{"path": name_of(12), "reason": "sha256 mismatch"}]
    assert integrity(run, baseline()) == []


def test_a_trainer_that_did_not_get_so_far_is_judged_elsewhere(tmp_path):
    second = attempt(1, 13, 12, path=tmp_path, resumed=None, supervisor=(damaged(name_of(12)),))
    assert integrity(run_of(attempt(0, 1, 14, path=tmp_path), second), baseline()) == []


def written_anew(tmp_path, then, now):
    """The newest is damaged before attempt 1, which writes it anew, is cut before it says so; attempt 2 reads it."""
    first = attempt(0, 1, 14, path=tmp_path)
    second = attempt(1, 9, 11, path=tmp_path, resumed=8, supervisor=(damaged(name_of(12)),))
    third = attempt(2, 13, STEPS, path=tmp_path, resumed=12, ended=True)
    run = run_of(first, second, third)
    said(run, 1, 0, "resume")["skipped"] = [{"path": name_of(12), "reason": "sha256 mismatch"}]
    record(run, 1, "files", moment="begin")["files"] = files_of(4) | files_of(8) | {name_of(12): then}
    record(run, 2, "files", moment="begin")["files"] = files_of(4) | files_of(8) | {name_of(12): now}
    return run


def test_a_file_that_was_written_anew_without_a_word_may_be_loaded(tmp_path):
    assert integrity(written_anew(tmp_path, [1012, "broken"], files_of(12)[name_of(12)]), baseline()) == []
    found = integrity(written_anew(tmp_path, [1012, "broken"], [1012, "broken"]), baseline())
    assert [(f.kind, f.attempt, f.rank) for f in found] == [("corrupt-accepted", 2, 0), ("corrupt-accepted", 2, 1)]


def test_what_is_written_anew_in_one_file_is_not_whole_in_the_other(tmp_path):
    how = {"path": tmp_path, "format": "sharded"}
    hits = (damaged("step-00000012/rank0.bin"), damaged("step-00000012/rank1.bin"))
    second = attempt(1, 9, 11, resumed=8, supervisor=hits, **how)
    third = attempt(2, 13, STEPS, resumed=12, ended=True, **how)
    run = run_of(attempt(0, 1, 14, **how), second, third, case=scenario(format="sharded"))
    said(run, 1, 0, "resume")["skipped"] = [{"path": "step-00000012", "reason": "sha256 mismatch"}]
    broken = {f"step-00000012/rank{rank}.bin": [1, "broken"] for rank in (0, 1)}
    record(run, 1, "files", moment="begin")["files"] = files_of(12, "sharded") | broken
    now = record(run, 2, "files", moment="begin")["files"] = files_of(12, "sharded") | broken
    now["step-00000012/rank0.bin"] = files_of(12, "sharded")["step-00000012/rank0.bin"]
    assert {f.file for f in integrity(run, baseline()) if f.kind == "corrupt-accepted"} == {"step-00000012/rank1.bin"}


def test_a_bit_that_was_flipped_twice_is_as_it_was(tmp_path):
    first = attempt(0, 1, 14, path=tmp_path)
    flip = damaged(name_of(12), "flip newest at 50%")
    run = run_of(
        first,
        attempt(1, 13, 12, path=tmp_path, resumed=None, supervisor=(flip,)),
        attempt(
            2, 13, STEPS, path=tmp_path, resumed=12, ended=True, supervisor=(flip | {"fault": "flip newest at 50% attempt 2"},)
        ),
    )
    record(run, 1, "files", moment="begin")["files"] = {name_of(12): [1012, "flipped"]}
    record(run, 2, "files", moment="begin")["files"] = files_of(12)
    assert integrity(run, baseline()) == []
    record(run, 2, "files", moment="begin")["files"] = {name_of(12): [1012, "flipped elsewhere"]}
    assert {f.kind for f in integrity(run, baseline())} == {"corrupt-accepted"}


def test_a_second_file_of_a_checkpoint_that_was_damaged_was_loaded_with_it(tmp_path):
    run = resumed(tmp_path, 12, damaged("optim.pt"))
    commit = next(one for one in run.attempts[0].of("committed") if one["step"] == 12)
    commit["files"] = {**commit["files"], "optim.pt": (900, "ab")}
    finding, _ = integrity(run, baseline())
    assert (finding.kind, finding.file) == ("corrupt-accepted", "optim.pt")
    assert finding.message == f"rank 0 resumed from {name_of(12)} in attempt 1, although optim.pt had been damaged"
    other = resumed(tmp_path, 12, damaged("other.pt"))
    assert integrity(other, baseline()) == []
