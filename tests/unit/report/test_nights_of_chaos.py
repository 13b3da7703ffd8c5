"""What a night of chaos leaves behind, read as every other result: its groups, its coverage, its shares, its history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from on_disk import diverging, write_run

from harness.report.document import parse_document
from harness.report.history import in_order, night_of, read_history
from harness.report.merge import merge
from harness.report.page import page
from harness.report.saving import Wanted, _merge_corpora, save_all
from harness.report.stored import Places, StoredDocument, StoredRun, read_stored, with_diagnoses


def written(index=1, count=2, began="", **more):
    fault = "sigkill rank 1 during write a.tmp at 50%; ENOSPC rank 0 on write * attempt 1"
    case = {"id": f"chaos-{index}", "fault": fault, "verdict": "FAIL", "kind": "hang", "component": "process", "ranks": [2, 1]}
    found = {
        "schema": "harness.result/1",
        "harness": "0.1.0",
        "command": ["harness", "chaos", "--shard", f"{index}/{count}", "--seed", "7"],
        "seed": 7,
        "began": began,
        "baseline": {"steps": 8, "deterministic": True},
        "summary": {"pass": 0, "fail": 1, "inconclusive": 0, "cases_per_min": 2.0},
        "cases": [{**case, "replay": "runs/x/plan.toml", "message": "rank 0 never ended", "flaky": False, "origin": "drawn"}],
        "chaos": {
            "shard": [index, count],
            "used_s": 30.0 + index,
            "cut": 0,
            "blocked": "",
            "broken": "",
            "notes": ["a note"],
            "regressed": [],
            "fixed": ["case 3"],
            "coverage": {"points": [["write", "sigkill", "save", 2, 3], ["open", "sigkill", "load", 1, 1], "odd"]},
            "groups": [
                {
                    "kind": "hang",
                    "component": "process",
                    "part": "process",
                    "cases": [1],
                    "smallest": ["sigkill rank 0 at step 1"],
                }
                | {"runs": 12, "complete": True, "replay": "small.toml", "test": "t.py", "strace": None}
            ],
        },
    }
    found["chaos"] |= more
    return json.dumps(found)


def night(*args, **more):
    return parse_document(written(*args, **more), Path("result.json"))


def test_groups_coverage_and_share_stand_where_all_results_have_them():
    found = night()
    (cause,) = found.findings
    assert (found.shard, found.took_s, found.outcome) == ("1/2", 31.0, "FAIL")
    assert (cause.text, cause.repeat, cause.seen) == ("rank 0 never ended", "small.toml", ("chaos-1",))
    assert "smallest: sigkill rank 0 at step 1 (12 runs; nothing simpler fails)" in cause.lines
    assert found.cases[0].world_sizes == (2, 1)
    assert found.coverage["covered by operations"] == {"sigkill": {"write": 3, "open": 1}}
    assert found.notes == ("fixed: case 3 of the corpus passes", "a note")


def test_a_finding_that_was_made_smaller_is_shown_by_the_run_that_was_drawn():
    run = StoredRun(Path("runs/x"), night().cases[0], None, diagnosis="why")
    found = with_diagnoses(night(), [run])
    assert (found.findings[0].repeat, found.findings[0].shown) == ("small.toml", "runs/x/plan.toml")
    assert found.findings[0].diagnosis == "why"
    assert Places([run]).showing(found.findings[0]) == run


def test_what_was_made_smaller_and_stayed_behind_is_repeated_by_the_run_that_is_here(tmp_path):
    path = write_run(tmp_path / "night" / "cases" / "case-00001", diverging())
    text = written().replace("runs/x/plan.toml", "/gone/night/cases/case-00001/plan.toml")
    (tmp_path / "night" / "result.json").write_text(text.replace("small.toml", "/gone/shrunk/case-00001/small.toml"))
    (found,) = (one for one in read_stored([tmp_path / "night"]).documents)
    (finding,) = found.document.findings
    assert finding.repeat == finding.shown == str(path / "plan.toml")
    assert "test: t.py (where it was found; it is not here)" in finding.lines
    (tmp_path / "small.toml").write_text("")
    (tmp_path / "night" / "result.json").write_text(text.replace("small.toml", str(tmp_path / "small.toml")))
    assert read_stored([tmp_path / "night"]).documents[0].document.findings[0].repeat == str(tmp_path / "small.toml")


def test_the_shares_of_a_night_are_one():
    merged = merge([StoredDocument(Path(f"{n}.json"), night(n)) for n in (1, 2)])
    assert (merged.summary.fail, len(merged.findings), merged.took_s, merged.outcome) == (2, 1, 32.0, "FAIL")
    assert merged.coverage["covered by operations"]["sigkill"] == {"write": 6, "open": 2}
    assert "covered by phases" in page(merged, ())


@pytest.mark.parametrize("why", ["blocked", "broken"])
def test_a_night_that_could_not_search_is_no_pass(why):
    assert night(**{why: "the canary passed"}).parts[0].text == "the canary passed"


def test_a_night_that_is_laid_out_otherwise_is_read_as_far_as_it_goes():
    found = night(coverage="none", groups=None, shard=None, notes="x")
    assert (found.findings, found.coverage, found.shard, len(found.cases)) == ((), {}, "", 1)


def test_the_lines_of_the_shares_are_one_night_of_the_history(tmp_path):
    file = tmp_path / "history.jsonl"
    line = {"schema": "harness.history/1", "time_s": 1.7e9, "seed": 7, "pass": 4, "fail": 1, "inconclusive": 0}
    more = {"groups": [["hang", "process", 2]], "harness": "0.1.0"}
    rows = [{**line, **more, "shard": [n, 2], "time_s": 1.7e9 + n} for n in (1, 2)] + [{**line, "seed": 8, "shard": [1, 1]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"schema": "harness.history/1"}\n')
    nights, problems = read_history(file)
    assert [(one.passed, one.failed) for one in sorted(in_order(nights), key=lambda one: one.group)] == [(8, 2), (4, 1)]
    assert len(problems) == 1


def test_nights_that_were_given_the_same_seed_are_several(tmp_path):
    file = tmp_path / "history.jsonl"
    days = [f"2026-01-0{day}T02:17:0{share}.000+00:00" for day in (1, 2, 3) for share in (1, 2)]
    line = {"schema": "harness.history/1", "time_s": 1.7e9, "seed": 7, "pass": 4, "fail": 1, "inconclusive": 0}
    rows = [{**line, "shard": [1 + number % 2, 2], "began": began} for number, began in enumerate(days)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = in_order(read_history(file)[0])
    assert [(one.began[:10], one.passed) for one in found] == [("2026-01-01", 8), ("2026-01-02", 8), ("2026-01-03", 8)]


def test_what_chaos_finds_every_night_is_one_cause():
    found = night(began="2026-01-01T00:00:00+00:00")
    other = found.model_copy(update={"findings": (found.findings[0].model_copy(update={"text": "rank 1 never ended"}),)})
    assert night_of(found).causes == night_of(other).causes == (("hang", "process", "found by chaos"),)


def test_a_night_that_is_reported_twice_is_remembered_once(tmp_path):
    (tmp_path / "result.json").write_text(written(began="2026-01-01T00:00:00+00:00"))
    asked = {"merge": False, "out": None, "pack": None, "limit": None, "runs": "12"}
    for _ in range(2):
        save_all(Wanted.parse([tmp_path], **asked, history=tmp_path / "nights.jsonl"))
    assert len((tmp_path / "nights.jsonl").read_text().splitlines()) == 1


def test_logs_of_corpora_that_began_as_one_are_joined(tmp_path):
    for n in (1, 2):
        (tmp_path / f"shard-{n}" / "corpus").mkdir(parents=True)
        (tmp_path / f"shard-{n}" / "corpus" / "corpus.jsonl").write_text(f'"common"\n"{n}"\n')
    assert _merge_corpora([tmp_path], tmp_path / "out" / "corpus") == []
    assert (tmp_path / "out" / "corpus" / "corpus.jsonl").read_text() == '"common"\n"1"\n"2"\n'
