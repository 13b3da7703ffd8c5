"""Shares put together: the same totals, nothing twice, nothing missing unsaid; history, archives and their limits."""

from __future__ import annotations

import json
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import histories as h
import pytest
from on_disk import diverging, named, write_run

from harness.errors import UsageError
from harness.report.checked import grouped
from harness.report.document import BaselineRow, CaseRow, Document, PartRow, summary_of, to_text
from harness.report.history import add_night, in_order, night_of, read_history
from harness.report.junit import junit
from harness.report.merge import combine, merge
from harness.report.pack import LEFT_OUT_FILE, copy, items_of, pack, parse_size, size_text
from harness.report.saving import Wanted, save_all
from harness.report.stored import Stored, StoredDocument, read_stored
from harness.shard import Shard

CASES = [
    CaseRow(
        id=f"c{n}", title=f"t::c{n}", verdict=verdict, kind=kind, component="rng", part="t", fault=f"sigkill rank 0 at step {n}"
    )
    for n, (verdict, kind) in enumerate(
        [("PASS", None), ("FAIL", "diverged"), ("INCONCLUSIVE", "out-of-time"), ("PASS", None)] * 5
    )
]


def document(cases, shard="", began="2026-01-02T00:00:00.000+00:00", command=("pytest", "scenarios"), **more):
    words = (*command, "--shard", shard, "--harness-json", f"{shard}.json") if shard else command
    facts = {"command": words, "shard": shard, "began": began, "took_s": 2.0, "cases": tuple(cases), "findings": grouped(cases)}
    return Document(**facts, summary=summary_of(cases, 2.0), **more)


def stored(*documents):
    return Stored(tuple(StoredDocument(Path(f"{number}.json"), one) for number, one in enumerate(documents)), ())


def shares(count):
    own = [Shard(index, count).of(case.title for case in CASES) for index in range(1, count + 1)]
    return [document([c for c in CASES if c.title in keys], f"{n}/{count}") for n, keys in enumerate(own, 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_together_have_the_totals_of_the_whole(count):
    whole, merged = document(CASES), merge(stored(*shares(count)).documents)
    assert merged.summary.model_dump(exclude={"cases_per_min"}) == whole.summary.model_dump(exclude={"cases_per_min"})
    assert (merged.outcome, merged.took_s) == (whole.outcome, 2.0)
    assert {case.id for case in merged.cases} == {case.id for case in whole.cases}
    assert [(one.kind, sorted(one.seen)) for one in merged.findings] == [(one.kind, sorted(one.seen)) for one in whole.findings]
    counts = [{key: ET.fromstring(junit(one)).get(key) for key in ("tests", "failures", "skipped")} for one in (whole, merged)]
    assert counts[0] == counts[1] == {"tests": "20", "failures": "5", "skipped": "5"}


@pytest.mark.parametrize(
    ("known", "whole"), [((True, True), True), ((True, None), None), ((None, False), False), ((False, True), False)]
)
def test_a_job_is_deterministic_where_every_share_knows_it(known, whole):
    documents = [document(CASES[:2], baseline=BaselineRow(steps=8, deterministic=one)) for one in known]
    assert merge(stored(*documents).documents).baseline.deterministic is whole


def test_checks_of_different_trainers_are_not_added_up():
    case = CaseRow(id="a", title="a", part="p", verdict="FAIL", kind="diverged", component="rng")
    one, other = (
        document(
            [case], command=("harness", "check", "--", "python", script, "{ckpt}"), parts=[PartRow(name="p", outcome="FAIL")]
        ).model_copy(update={"coverage": ({"part": "p", "distinct": 5, "judged": 5},)})
        for script in ("a.py", "b.py")
    )
    merged = merge(stored(one, other).documents)
    assert [part.name for part in merged.parts] == [f"check -- python {script} {{ckpt}}: p" for script in ("a.py", "b.py")]
    assert {case.part for case in merged.cases} == {part.name for part in merged.parts}
    assert [(row["judged"], row["distinct"]) for row in merged.coverage] == [(5, 5), (5, 5)]
    assert [one.lines[0] for one in merged.findings] == [
        f"work: check -- python {script} {{ckpt}}" for script in ("a.py", "b.py")
    ]


def test_a_missing_share_is_no_pass():
    good = [CaseRow(id="a", title="a", verdict="PASS"), CaseRow(id="b", title="b", verdict="PASS")]
    one, two, _ = (document([case], f"{n}/3") for n, case in enumerate([*good, good[0]], 1))
    merged = merge(stored(one, two).documents)
    assert merged.outcome == "INCONCLUSIVE"
    assert merged.parts[-1].text.startswith("1 share missing: 3/3; nothing is known")


def test_a_share_that_is_there_twice_is_refused():
    with pytest.raises(
        UsageError, match=r"share 1/2 of `pytest scenarios.* is there twice: 0.json and 1.json; expected each once"
    ):
        merge(stored(document(CASES, "1/2"), document(CASES, "1/2", began="2026-01-03")).documents)


def test_what_several_shares_had_to_run_counts_once_if_they_agree():
    both = CaseRow(id="control", title="control", part="p", verdict="PASS")
    other = both.model_copy(update={"verdict": "FAIL", "kind": "diverged"})
    same = merge(stored(document([both], "1/2"), document([both], "2/2")).documents)
    differs = merge(stored(document([both], "1/2"), document([other], "2/2")).documents)
    assert (len(same.cases), len(differs.cases), differs.outcome) == (1, 2, "FAIL")


def test_the_parts_of_an_exploration_are_added_up():
    facts = {"part": "p", "inconclusive": "", "crash_points": 9, "states": 30, "power_states": 10, "distinct": 12}
    ones = []
    for n, judged in ((1, 5), (2, 6)):
        row = {
            **facts,
            "judged": judged,
            "resumes": judged,
            "left_out": 0,
            "not_asked": 1,
            "elsewhere": 11 - judged,
            "duration_s": 4.0,
        }
        cases = [CaseRow(id=f"{n}.{k}", title=f"{n}.{k}", part="p", verdict="PASS", states=2) for k in range(judged)]
        part = PartRow(name="p", outcome="PASS", text="?", explored=True)
        ones.append(document(cases, f"{n}/2", coverage=(row,), parts=(part,)))
    merged = merge(stored(*ones).documents)
    (row,) = merged.coverage
    assert (row["judged"], row["resumes"], row["distinct"], row["not_asked"], row["elsewhere"]) == (11, 11, 12, 1, 0)
    assert (
        merged.parts[0].text
        == "9 crash points, 30 states (10 of them after a power cut), 12 distinct, 11 real resumes: 73 % covered in 4.0 s"
    )
    other = ones[1].model_copy(update={"coverage": ({**row, "distinct": 14},)})
    assert "the shares saw different numbers of distinct states (12, 14)" in merge(stored(ones[0], other).documents).notes[0]


def test_tables_of_counts_are_added_cell_by_cell():
    one = document(CASES[:1], "1/2", coverage={"effects": {"sigkill": {"write": 2}}, "name": "x"})
    two = document(CASES[1:2], "2/2", coverage={"effects": {"sigkill": {"write": 1, "fsync": 4}}, "name": "x"})
    assert merge(stored(one, two).documents).coverage == {"effects": {"sigkill": {"write": 3, "fsync": 4}}, "name": "x"}


def test_of_several_nights_the_newest_counts_and_the_others_are_history():
    nights = [document(CASES[:n], began=f"2026-01-0{n}T00:00:00.000+00:00") for n in (2, 1, 3)]
    found, older = combine(stored(*nights))
    assert (found.began[:10], len(found.cases)) == ("2026-01-03", 3)
    assert sorted(one.began[:10] for one in older) == ["2026-01-01", "2026-01-02"]
    assert found.notes == ("2 older results of the same work: counted as history only",)


def test_nights_of_chaos_are_one_work_whatever_they_were_seeded_with():
    nights = [document(CASES, began=f"2026-01-0{n}", command=("harness", "chaos", "--seed", str(n))) for n in (1, 2)]
    assert len(combine(stored(*nights))[1]) == 1
    checks = [document(CASES, began=f"2026-01-0{n}", command=("harness", "check", "--seed", str(n))) for n in (1, 2)]
    assert len(combine(stored(*checks))[1]) == 0


def test_where_a_corpus_lies_is_the_affair_of_each_machine():
    words = [("harness", "chaos", "--corpus", f"/machine-{n}/corpus", "--", "train.py") for n in (1, 2)]
    parts = [document(CASES[n - 1 :: 2], f"{n}/2", command=words[n - 1]) for n in (1, 2)]
    for number, part in enumerate(parts):
        command = (*words[number][:2], "--shard", part.shard, *words[number][2:])
        parts[number] = part.model_copy(update={"command": command})
    merged = merge(stored(*parts).documents)
    assert not any(part.missing for part in merged.parts)
    assert (merged.shard, len(merged.cases)) == ("", len(CASES))


def test_history_is_a_line_a_night_and_what_cannot_be_read_is_said_and_kept(tmp_path):
    file = tmp_path / "history.jsonl"
    first, second = (night_of(document(CASES, began=f"2026-01-0{n}")) for n in (1, 2))
    add_night(file, first, [])
    file.write_text(file.read_text() + '{"schema": "harness.night/9"}\nnot json')
    read, problems = read_history(file)
    assert read == [first]
    assert ["schema 'harness.night/9'" in problems[0], "line 3" in problems[1]] == [True, True]
    add_night(file, second, read)
    add_night(file, second, [*read, second])  # once only
    read, problems = read_history(file)
    assert (in_order(read), len(problems), "not json\n" in file.read_text()) == ([first, second], 2, True)
    assert (second.passed, second.failed, second.undecided, second.causes[0][:2]) == (10, 5, 5, ("diverged", "rng"))


# --- archives


@pytest.mark.parametrize(("text", "size"), [("200MB", 200_000_000), ("1.5 GiB", 1_610_612_736), ("700", 700), ("3kB", 3000)])
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1MB", "0", "1TBx", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="expected a size such as 200MB"):
        parse_size(text)


def large_runs(tmp_path):
    for name, run in (("good", h.killed_and_resumed()), ("bad", diverging())):
        path = write_run(tmp_path / "runs" / name, named(run, name))
        noise = b"".join(bytes([(n * n) % 251]) * 3 for n in range(20_000))
        (path / "checkpoints" / "step.pt").write_bytes(noise)
        (path / "attempt-000" / "data.bin").write_bytes(noise[:30_000])
    (tmp_path / "runs" / "bad" / "checkpoints" / "link").symlink_to("/etc/passwd")
    return read_stored([tmp_path / "runs"])


def test_failing_runs_come_first_and_what_explains_before_what_is_large(tmp_path):
    found = large_runs(tmp_path)
    items = items_of([(run, run.path.name) for run in found.runs])
    order = [item.name for item in items]
    assert order[0].startswith("bad/")
    assert order.index("bad/attempt-000/operations.jsonl") < order.index("good/plan.toml")
    assert order.index("good/attempt-000/rank-0.jsonl") < order.index("bad/checkpoints/step.pt")
    assert order[-1].startswith("good/")
    assert not any("link" in name for name in order), "a link may lead anywhere"


@pytest.mark.parametrize("limit", [40_000, 90_000, 10_000_000])
def test_an_archive_stays_under_its_limit_and_says_what_it_lacks(tmp_path, limit):
    found = large_runs(tmp_path)
    items = items_of([(run, f"runs/{run.path.name}") for run in found.runs])
    packed = pack(items, tmp_path / "a.tar.gz", limit)
    assert (tmp_path / "a.tar.gz").stat().st_size <= limit
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        names = archive.getnames()
        said = archive.extractfile(LEFT_OUT_FILE).read().decode()
        archive.extractall(tmp_path / "out", filter="data")
    assert set(names) == {LEFT_OUT_FILE, *(item.name for item in packed.kept)}
    assert len(packed.kept) + len(packed.left_out) == len(items)
    if limit == 10_000_000:
        assert said.startswith("nothing was left out")
        assert read_stored([tmp_path / "out" / "runs" / "bad"]).runs[0].row.kind == "diverged"
    else:
        assert f"left out to stay within the limit of {size_text(limit)}" in said
        assert "runs/bad/plan.toml" in names


def test_a_limit_without_room_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has room for no file at all"):
        pack(items_of([(run, run.path.name) for run in large_runs(tmp_path).runs]), tmp_path / "a.tar.gz", 2000)
    assert not list(tmp_path.glob("a.tar.gz*"))


def test_copies_stay_under_the_limit(tmp_path):
    items = items_of([(run, run.path.name) for run in large_runs(tmp_path).runs])
    packed = copy(items, tmp_path / "out", 60_000)
    assert packed.left_out
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != LEFT_OUT_FILE]
    assert sum(path.stat().st_size for path in files) == packed.size_bytes <= 60_000


# --- the whole


def wanted(*folders, **more):
    settings = {"history": None, "merge": False, "out": None, "pack": None, "limit": None, "runs": "12"} | more
    return Wanted.parse(folders, **settings)


def test_a_merge_puts_results_junit_corpus_history_and_evidence_together(tmp_path):
    for n, (one, run) in enumerate(zip(shares(2), (diverging(), h.killed_and_resumed()), strict=True), 1):
        folder = tmp_path / f"machine-{n}"
        write_run(folder / "runs" / "case", named(run, f"case-{n}"))
        (folder / "result.json").write_text(to_text(one))
        (folder / "junit.xml").write_text(junit(one))
        (folder / "corpus").mkdir()
        (folder / "corpus" / "same.toml").write_text("x = 1")
        (folder / "corpus" / "other.toml").write_text(f"x = {n}")
        (folder / "history.jsonl").write_text("")
    (tmp_path / "machine-2" / "unit").mkdir()
    (tmp_path / "machine-2" / "unit" / "pytest.xml").write_text(
        '<testsuite name="u" tests="1"><testcase name="t" time="0.5"/></testsuite>'
    )
    out = tmp_path / "merged"
    found = save_all(wanted(tmp_path / "machine-1", tmp_path / "machine-2", merge=True, out=out))
    assert len(found.document.cases) == 22, "20 of the shares, and two run directories that no document names"
    root = ET.parse(out / "junit.xml").getroot()
    assert (root.get("tests"), root.find("testsuite[@name='u']").get("tests")) == ("23", "1")
    assert sorted(path.name for path in (out / "corpus").iterdir()) == ["other.2.toml", "other.toml", "same.toml"]
    assert any("kept as other.2.toml" in line for line in found.said)
    assert (out / "runs" / "machine-1" / "runs" / "case" / "plan.toml").is_file()
    assert json.loads((out / "result.json").read_text())["summary"]["fail"] == 6
    again = save_all(wanted(out))
    assert (len(again.document.cases), again.document.outcome) == (22, "FAIL")


def test_a_broken_junit_file_is_said_and_stops_nothing(tmp_path):
    write_run(tmp_path / "in" / "case", h.killed_and_resumed())
    (tmp_path / "in" / "cut.xml").write_text("<testsuite><testca")
    (tmp_path / "in" / "odd.xml").write_text("<html/>")
    found = save_all(wanted(tmp_path / "in", merge=True, out=tmp_path / "out"))
    assert ["cut.xml is no JUnit XML (" in found.said[0], "its root is <html>" in found.said[1]] == [True, True]


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    problems = wanted(tmp_path / "no", out=tmp_path / "full", limit="big", runs="-1").problems
    assert len(problems) == 6, problems
    assert wanted().problems[0].startswith("nothing to report on")
    assert wanted(tmp_path, merge=True).problems == ("--merge needs --out DIR, a new folder for what is put together",)
