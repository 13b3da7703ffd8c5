"""Reading what lies on disk: run directories, documents, and everything that can be wrong with them."""

from __future__ import annotations

import json
import shlex

import histories as h
import pytest
from on_disk import HOSTILE, diverging, lines, named, with_operations, write_run

from harness.errors import UsageError
from harness.plan import replay_line
from harness.report.document import CaseRow, Document, parse_document, to_text
from harness.report.merge import combine
from harness.report.stored import Places, read_stored, relocated, stored_runs
from harness.report.summary import text


def test_runs_below_a_folder_are_found_and_told_as_they_were_judged(tmp_path):
    write_run(tmp_path / "deep" / "bad", named(diverging(), "bad"))
    write_run(tmp_path / "good", named(h.killed_and_resumed(), "good"))
    stored = read_stored([tmp_path])
    assert [(run.row.id, run.row.verdict) for run in stored.runs] == [("bad", "FAIL"), ("good", "PASS")]
    assert stored.runs[0].row.text.startswith("FAIL diverged: ")
    assert stored.notes == ()
    document, older = combine(stored)
    assert (document.outcome, document.summary.num_pass, document.summary.fail, older) == ("FAIL", 1, 1, [])
    (found,) = document.findings
    assert (found.kind, found.seen) == ("diverged", ("bad",))
    assert f"repeat: harness replay {tmp_path / 'deep' / 'bad' / 'plan.toml'}" in text(document)


def test_a_run_that_is_still_being_written_is_no_pass(tmp_path):
    path = write_run(tmp_path / "open", h.killed_and_resumed(), judged=False)
    log = path / "attempt-001" / "attempt.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines() if '"ended"' not in line))
    stored = read_stored([path])
    document, _ = combine(stored)
    assert document.outcome == "INCONCLUSIVE"
    assert "it is still being written, or the harness was ended in the middle" in stored.notes[0]
    assert "it is still being written" in text(document)


def test_a_run_that_nobody_has_judged_is_judged(tmp_path):
    path = write_run(tmp_path / "new", diverging(), judged=False)
    (run,) = read_stored([path]).runs
    assert (run.row.verdict, run.row.kind) == ("FAIL", "diverged")
    assert run.note.endswith("has no verdict.json; judged from its logs")
    assert not (path / "verdict.json").exists()  # reading writes nothing


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"id": "x", "verd', "is no JSON"),
        ("[1]", "is no verdict: found list"),
        ('{"id": "x", "verdict": "MAYBE"}', "is not what harness "),
        ('{"verdict": "PASS"}', "(id: Field required)"),
    ],
)
def test_a_verdict_that_cannot_be_read_is_judged_again(tmp_path, content, said):
    path = write_run(tmp_path / "run", diverging())
    (path / "verdict.json").write_text(content)
    (run,) = read_stored([path]).runs
    assert (run.row.verdict, run.row.kind) == ("FAIL", "diverged")
    assert said in run.note
    assert run.note.endswith("judged again from its logs")


def test_a_verdict_of_another_version_is_told_beside_what_this_one_says(tmp_path):
    path = write_run(tmp_path / "run", diverging())
    facts = json.loads((path / "verdict.json").read_text())
    (path / "verdict.json").write_text(json.dumps({**facts, "kind": "lost-work", "new_key": {"x": 1}}))
    (run,) = read_stored([path]).runs
    assert run.row.kind == "lost-work"
    assert "its verdict.json says FAIL lost-work, this version of the harness judges FAIL diverged" in run.note
    assert "now judged: FAIL diverged" in run.row.text


def test_a_run_of_which_only_the_verdict_is_left(tmp_path):
    path = write_run(tmp_path / "run", diverging())
    (path / "plan.toml").write_text("= broken")
    (run,) = read_stored([path]).runs
    assert (run.row.verdict, run.row.kind) == ("FAIL", "diverged")
    assert "is no TOML" in run.note
    (path / "verdict.json").unlink()
    (run,) = read_stored([path]).runs
    assert run.row.verdict == "INCONCLUSIVE"


def test_a_log_that_was_cut_short_is_said(tmp_path):
    path = write_run(tmp_path / "run", h.killed_and_resumed(), judged=False)
    log = path / "attempt-001" / "rank-0.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    (run,) = read_stored([path]).runs
    assert run.row.verdict != "PASS"
    assert "is not JSON" in run.row.text


def test_the_recording_of_an_undisturbed_job_is_no_case(tmp_path):
    undisturbed = h.run_of(h.attempt(0, 1, h.STEPS, path=tmp_path, ended=True), case=h.scenario(()))
    write_run(tmp_path / "recorded-00", undisturbed, judged=False)
    write_run(tmp_path / "case", h.killed_and_resumed())
    assert [run.path.name for run in read_stored([tmp_path]).runs] == ["case"]


@pytest.mark.parametrize("diagnosis", ["why", {"paragraph": "why", "rank": 1}, {"text": "why", "deep": {"a": [1]}}])
def test_a_diagnosis_is_told_however_it_is_laid_out(tmp_path, diagnosis):
    path = write_run(tmp_path / "run", diverging())
    facts = json.loads((path / "verdict.json").read_text())
    (path / "verdict.json").write_text(json.dumps({**facts, "diagnosis": diagnosis}))
    stored = read_stored([path])
    assert stored.runs[0].diagnosis == "why"
    document, _ = combine(stored)
    assert document.findings[0].diagnosis == "why"
    assert text(document).count("diagnosis: ") == 1


def test_everything_that_holds_nothing_is_said_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("x")
    with pytest.raises(UsageError) as raised:
        read_stored([tmp_path / "empty", tmp_path / "nowhere", tmp_path / "note.txt"])
    one, two, three = raised.value.problems
    assert "holds no run directory (with a plan.toml) and no result.json" in one
    assert "does not exist; expected a run directory" in two
    assert "note.txt is no JSON" in three


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"schema": "harness.result/2", "harness": "9.9"}', "(written by harness 9.9), this version reads 'harness.result/1'"),
        ('{"schema": "harness.result/1", "cases": [{"id": 3}]}', "is damaged: cases.0"),
        ('{"schema": "harness.result/1", "cas', "is no JSON"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused_by_itself_and_told_beside_others(tmp_path, content, said):
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UsageError, match=r"result\.json") as raised:
        read_stored([tmp_path])
    assert said in str(raised.value)
    write_run(tmp_path / "case", h.killed_and_resumed())
    stored = read_stored([tmp_path])
    assert [run.row.verdict for run in stored.runs] == ["PASS"]
    assert said in stored.notes[0]


def test_a_document_is_read_as_it_was_written(tmp_path):
    path = write_run(tmp_path / "run", diverging())
    document, _ = combine(read_stored([path]))
    assert parse_document(to_text(document), tmp_path) == document
    assert Document().outcome == "INCONCLUSIVE", "nothing at all is no pass"


def test_the_same_results_written_twice_count_once(tmp_path):
    path = write_run(tmp_path / "runs" / "case", diverging())
    document, _ = combine(read_stored([path]))
    for name in ("result.json", "copy.json"):
        (tmp_path / name).write_text(to_text(document))
    whole, _ = combine(read_stored([tmp_path]))
    assert len(whole.cases) == 1


def test_runs_are_found_again_on_another_machine(tmp_path):
    path = write_run(tmp_path / "here" / "state-7" / "run", diverging())
    places = Places(stored_runs([tmp_path]))
    assert places.of(str(path / "plan.toml")).path == path
    assert places.of("/gone/elsewhere/state-7/run/plan.toml").path == path
    assert places.of("/gone/elsewhere/state-8/run/plan.toml") is None
    assert places.of("") is None


def test_a_name_that_is_no_utf_8_is_told_all_the_same(tmp_path):
    path = write_run(tmp_path / "run", diverging())
    facts = json.loads((path / "verdict.json").read_text())
    (path / "verdict.json").write_text(json.dumps({**facts, "file": "odd-\udcff.pt"}))
    document, _ = combine(read_stored([path]))
    assert document.cases[0].file == "odd-\\udcff.pt"
    assert parse_document(to_text(document), path) == document


def test_hostile_names_are_only_text(tmp_path):
    path = write_run(tmp_path / "run", with_operations(diverging()))
    facts = json.loads((path / "verdict.json").read_text())
    (path / "verdict.json").write_text(json.dumps({**facts, "id": HOSTILE, "fault": HOSTILE}))
    lines(path / "attempt-000" / "operations.jsonl", [{"event": "operation", "operation": 7, "rank": "x"}])
    (run,) = read_stored([path]).runs
    assert run.row.id == HOSTILE


def test_the_line_that_repeats_a_case_follows_it_whatever_its_folder_is_called(tmp_path):
    old, new = "/gone/it's here/run/plan.toml", "runs/it's here/run/plan.toml"
    case = CaseRow(id="c", verdict="FAIL", fault="none", replay=old, text=f"FAIL\n  repeat: {replay_line(old)}")
    (moved,) = relocated(Document(cases=(case,)), {old: new}).cases
    assert (moved.replay, shlex.split(moved.text)[-1]) == (new, new)
