"""The page and what stands in it: curves, timelines, the matrix, coverage; one file, nothing from outside, nothing unescaped."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import histories as h
import pytest
from markdown_it import MarkdownIt
from on_disk import HOSTILE, diverging, named, operation, with_operations, write_run

from harness.errors import UsageError
from harness.report import extra
from harness.report.curves import MAX_POINTS, MAX_RANKS, curves
from harness.report.document import CaseRow, Document, FoundRow, PartRow
from harness.report.history import Night
from harness.report.junit import junit
from harness.report.matrix import MAX_ROWS, coverage_tables, matrix
from harness.report.merge import combine
from harness.report.page import page
from harness.report.stored import read_stored
from harness.report.summary import markdown
from harness.report.timeline import save_spans, timeline
from harness.store import Baseline

# --- curves


def test_the_curves_are_those_of_every_rank_and_say_where_the_fault_was():
    found = curves(diverging(), h.baseline())
    assert {(one.attempt, one.rank) for one in found.losses} == {(a, r) for a in (-1, 0, 1) for r in (0, 1)}
    differing = [one for one in found.differences if any(value > 0 for _, value in one.points)]
    assert [(one.attempt, one.rank) for one in differing] == [(1, 1)]
    assert min(batch for batch, value in differing[0].points if value > 0) == 20
    fault, resume = found.places
    assert (fault.batch, fault.resume, resume.batch, resume.resume) == (14.5, False, 12, True)
    assert fault.text == f"{h.KILL} (attempt 0)"


def test_on_another_number_of_ranks_the_means_are_compared():
    run = h.killed_and_resumed()
    run.attempts[1] = h.attempt(1, 13, h.STEPS, resumed=12, ended=True, before=(4, 8, 12), path=run.attempts[1].path, ranks=1)
    found = curves(run, h.baseline())
    assert [one.rank for one in found.differences if one.attempt == 1] == [-1]


def test_no_number_is_equal_to_none_but_a_batch_that_is_skipped_twice_is_equal():
    run, golden = h.killed_and_resumed(), h.baseline()
    h.row(run, 1, 0, 15)["loss"] = "nan"
    found = {(one.attempt, one.rank): dict(one.points) for one in curves(run, golden).differences}
    assert math.isnan(found[1, 0][15])
    next(r for r in golden.ranks[0].of("batch") if r["batch"] == 15)["loss"] = "nan"
    golden.ranks[0].__dict__.pop("batches")
    found = {(one.attempt, one.rank): dict(one.points) for one in curves(run, golden).differences}
    assert found[1, 0][15] == 0


def test_of_very_much_the_extremes_stay_and_it_is_said():
    many = {rank: h.rank_log(rank, 1, 600, ended=True) for rank in range(MAX_RANKS + 3)}
    other = {rank: h.rank_log(rank, 1, 600, ended=True) for rank in range(MAX_RANKS + 3)}
    next(r for r in other[10].of("batch") if r["batch"] == 234)["loss"] = (77.0).hex()
    next(r for r in other[9].of("batch") if r["batch"] == 500)["loss"] = "nan"
    first = h.attempt(0, 1, 1, path=h.Path("x"), ended=True)
    first.ranks.clear()
    first.ranks.update(other)
    first.of("launched")[0]["world_size"] = len(other)
    found = curves(h.run_of(first), Baseline(len(many), many))
    drawn = {one.rank: dict(one.points) for one in found.differences}
    assert len(drawn) == MAX_RANKS
    assert drawn[10][234] == max(drawn[10].values()) > 70
    assert math.isnan(drawn[9][500])
    assert max(len(one.points) for one in found.losses) <= MAX_POINTS + MAX_POINTS // 4
    assert f"{MAX_RANKS} of 11 ranks are drawn" in found.notes[0]
    assert "points are drawn" in found.notes[1]


def test_a_run_without_batches_has_no_curve():
    empty = h.attempt(0, 1, 0, path=h.Path("x"), resumed=None)
    assert "no rank has logged a batch" in curves(h.run_of(empty), Baseline(1, {}))


# --- timelines


def test_the_timeline_has_all_ranks_in_their_order_with_the_fault_and_the_commits():
    line = timeline(with_operations(diverging()).attempts[0])
    assert line.ranks == (0, 1)
    whats = [event.what for event in line.events]
    assert whats.index("fault") > whats.index("rename")
    assert whats.count("commit") == 3
    assert [event.what for event in line.events if event.rank == 1 and event.what in ("open", "write", "fsync", "rename")] == [
        *("open", "write", "write", "fsync", "rename")
    ]
    spans = save_spans(line.events)
    assert [span[0] for span in spans] == [0, 1]
    assert spans[1][2] >= whats.index("rename"), "a save that was cut off reaches to what its rank did last"


def test_of_a_long_timeline_what_is_around_the_fault_is_shown():
    run = h.killed_and_resumed()
    run.attempts[0].operations.extend(operation(n, n % 2, "write", "f", 1000.0 + n / 100) for n in range(3000))
    window = timeline(run.attempts[0]).window(60)
    assert len(window.events) == 60
    assert any(event.what == "fault" for event in window.events)
    assert re.fullmatch(r"events \d+ to \d+ of 30\d\d, those around the fault", window.note)
    assert timeline(h.killed_and_resumed().attempts[1]).window(60).note == ""


# --- matrix and coverage


def row(fault, verdict="PASS", kind=None, **more):
    return CaseRow(id="x", fault=fault, verdict=verdict, kind=kind, **more)


def test_the_matrix_counts_places_by_outcome():
    power = "power-cut keeping no names and no data before rename *.tmp by rank 0"
    found = matrix(
        [
            row("sigkill rank 1 during write a.tmp at 50%", states=3),
            row("sigkill rank 1 during write a.tmp at 50%", "FAIL", "last-good-lost", replay="bad.toml"),
            row(f"{power}; hold rank 1 before write b until rank 0 write c", "FAIL", "not-durable"),
            row("none", "INCONCLUSIVE", "out-of-time"),
            row(HOSTILE),
        ]
    )
    assert found.outcomes == ("PASS", "last-good-lost", "not-durable", "INCONCLUSIVE")
    assert [(one.group, one.place, one.counts) for one in found.rows] == [
        ("kill", "during write a.tmp at 50%, rank 1", {"PASS": 3, "last-good-lost": 1}),
        ("power", "before rename *.tmp, rank 0", {"not-durable": 1}),
        ("none", "the job as it is", {"INCONCLUSIVE": 1}),
        ("other", HOSTILE, {"PASS": 1}),
    ]
    assert found.rows[0].replay == "bad.toml"


def test_of_very_many_places_those_that_failed_stay():
    cases = [row(f"sigkill rank 0 at step {n}", *(("FAIL", "diverged") if n == 900 else ())) for n in range(1, 1000)]
    found = matrix(cases)
    assert len(found.rows) == MAX_ROWS
    assert any(one.place == "at step 900, rank 0" for one in found.rows)
    assert found.note == "120 of 999 places, those where something failed first (1 of them)"


def test_coverage_is_counted_from_the_faults():
    tables = {
        table.title: {name: dict(zip(table.columns, cells, strict=True)) for name, cells in table.rows}
        for table in coverage_tables(
            [
                row("sigkill all ranks before fsync * attempt 1; EIO rank 0 on write x", "FAIL", "hang", world_sizes=(4, 2)),
                row("truncate newest to byte 0", world_sizes=(2,)),
            ]
        )
    }
    assert tables["effects × operations"]["sigkill"]["fsync"] == "1 (1 failed)"
    assert tables["effects × phases"]["truncate"]["between launches"] == "1"
    assert tables["numbers of ranks, launch after launch"] == {"4 → 2": {"cases": "1 (1 failed)"}, "2": {"cases": "1"}}


# --- the page


class Page(HTMLParser):
    """What a browser would load, and the text that it would show."""

    def __init__(self):
        super().__init__()
        self.addresses, self.tags, self.text, self.ids = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data", "srcset")]
        self.ids += [value for name, value in attrs if name == "id"]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.text.append(data)


def parsed(text):
    found = Page()
    found.feed(text)
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = with_operations(diverging())
    run.attempts[0].operations.append(operation(99, 0, "write", f"$x$ {HOSTILE}.bin", 1014.3))
    path = write_run(folder / "bad", named(run, "bad"))
    facts = json.loads((path / "verdict.json").read_text())
    facts |= {"id": HOSTILE, "diagnosis": {"paragraph": f"It was {HOSTILE}.", "component": "rng"}}
    (path / "verdict.json").write_text(json.dumps(facts))
    write_run(folder / "good", named(h.killed_and_resumed(), "good"))
    stored = read_stored([folder])
    document, _ = combine(stored)
    nights = [
        Night(began=f"2026-01-0{n}T00:00:00+00:00", passed=n, failed=1, causes=(("hang", "process", HOSTILE),)) for n in (1, 2)
    ]
    return document, stored.runs, page(document, stored.runs, nights)


def test_the_page_needs_nothing_from_outside(shown):
    _, _, text = shown
    found = parsed(text)
    assert all(address.startswith(("#", "data:,")) for address in found.addresses), found.addresses
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "script" not in found.tags


def test_every_address_within_the_page_is_there(shown):
    found = parsed(shown[2])
    assert {address[1:] for address in found.addresses if len(address) > 1 and address[0] == "#"} <= set(found.ids)


def test_nothing_that_a_job_has_said_becomes_a_part_of_the_page(shown):
    _, _, text = shown
    assert HOSTILE not in text
    assert text.count("&lt;script&gt;alert(1)") > 4


def test_the_page_shows_curves_timelines_matrix_coverage_history_and_how_to_repeat(shown):
    _, runs, text = shown
    found = parsed(text)
    said = " ".join(found.text)
    assert found.tags.count("svg") == 2 * (2 + 2 * 2 + 1)  # each wide and narrow: losses of two runs, two attempts each, nights
    shown_words = ("tolerance", "|difference|", "rank 1", "fsync", "commit", "fault", "still there", "Diagnosis.", "2 nights")
    for words in (*shown_words, "at step 14, rank 1"):
        assert words in said, words
    assert f"harness replay {runs[0].path / 'plan.toml'}" in said
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_the_page_is_the_same_for_the_same_results(shown):
    document, runs, _ = shown
    assert page(document, runs) == page(document, runs)


def test_the_number_of_runs_in_full_is_kept_and_said(shown):
    document, runs, _ = shown
    text = page(document, runs, num_runs=1)
    assert "1 more run directories are not shown in full" in text
    assert "svg" not in parsed(page(document, runs, num_runs=0)).tags


def test_a_page_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setattr(extra.importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object())
    with pytest.raises(
        UsageError, match=r"--html needs matplotlib, not installed here; install it with: pip install 'resume-harness\[report\]'"
    ):
        page(Document(), ())


def test_a_page_of_nothing_is_a_page():
    assert "No case, so no place." in page(Document(), ())


# --- what a CI system reads

ODD = "a | b\n<b>`x`</b> ```\x1b[31m *y*"
ODD_DOCUMENT = Document(
    command=("harness", "check"),
    parts=(PartRow(name=ODD, outcome="FAIL", text=ODD), PartRow(name="q", outcome="PASS", text="all", explored=True)),
    cases=(
        CaseRow(id="c", part=ODD, title=ODD, verdict="FAIL", kind="hang", text=ODD),
        CaseRow(id="d", part="q", verdict="PASS"),
    ),
    findings=(FoundRow(kind="hang", component="process", text=ODD, lines=(ODD,), seen=(ODD,), repeat="p"),),
    left_out=(ODD,),
)


def test_markdown_keeps_its_shape_whatever_was_said():
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown(ODD_DOCUMENT))
    kinds = [token.type for token in tokens]
    assert (kinds.count("table_open"), kinds.count("tr_open"), kinds.count("td_open")) == (1, 3, 6)
    assert (kinds.count("fence"), kinds.count("html_block"), kinds.count("list_item_open")) == (1, 0, 1)
    assert not any(child.type == "html_inline" for token in tokens for child in token.children or ())
    fence = next(token.content for token in tokens if token.type == "fence")
    assert "<b>`x`</b> ```" in fence, "in a block the text stands as it is"


def test_junit_holds_whatever_was_said():
    root = ET.fromstring(junit(ODD_DOCUMENT))
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["2", "1", "0", "0"]
    assert [suite.get("tests") for suite in root] == ["1", "1"]
    failure = root.find("testsuite/testcase/failure")
    assert failure.get("message") == "a | b"
    assert "<b>`x`</b> ```?[31m *y*" in failure.text
