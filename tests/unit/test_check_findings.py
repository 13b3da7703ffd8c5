"""What `harness check -- COMMAND` prints: every cause once over all parts, what was left out, JUnit XML and Markdown."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from test_check_report import BAD, cause, exploration, judged

from harness.check import Case, Check, Part, Request
from harness.check_plan import AGAIN, DAMAGE, KILLS
from harness.oracle.finding import fail, inconclusive
from harness.oracle.unfelt import Unfelt
from harness.oracle.verdict import Verdict
from harness.report import junit as xml
from harness.report import summary
from harness.report.checked import check_document
from harness.report.document import parse_document, to_text
from harness.report.findings import findings
from harness.scenario import job

GOOD = Verdict("good", "none", "PASS")
LOST = fail("state-lost", "state", "scaler is not what it was", component="scaler", expected="aa", found="bb")
TAKEN = fail(
    "corrupt-accepted", "integrity", "resumed although damaged", component="checkpoint-files", expected="no", found="yes"
)
OPEN = Verdict("open", "none", "INCONCLUSIVE", (inconclusive("not-comparable", "check", "nobody knows"),))


def case(name, verdict):
    return Case(name, verdict, Path("runs") / name)


def bad(*found):
    return Verdict("bad", "none", "FAIL", found, found[0].component)


def checked(*parts, left_out=()):
    return Check(Request(job()), parts, 1.0, 4.0, None, left_out)


def text(check):
    return summary.text(check_document(["harness", "check"], check))


def test_one_cause_in_several_parts_is_one_finding():
    check = checked(
        Part(KILLS, cases=(case("early", bad(LOST)), case("late", bad(LOST)), case("first", GOOD))),
        Part("SIGTERM", cases=(case("asked", bad(LOST)),)),
    )
    (found,) = findings(check)
    assert (found.kind, found.component, found.seen) == ("state-lost", "scaler", ("early", "late", "asked"))
    assert text(check).count("repeat: harness replay runs/early/plan.toml") == 1
    assert text(check).splitlines()[-1].startswith("FAIL: 1 finding; 4 cases in 4.0 s")


def test_what_a_kill_in_a_save_has_shown_is_not_named_again():
    gone = fail("last-good-lost", "retention", "ckpt.pt is gone", component="checkpoint-files", expected="it", found="nothing")
    explored = Part("crash points of s", exploration(judged("bad", BAD, 3), causes=(cause(),)))
    check = checked(explored, Part(AGAIN, cases=(case("again", bad(gone)),)), Part("SIGTERM", cases=(case("asked", bad(gone)),)))
    assert [one.seen for one in findings(check)] == [("3 states of crash points of s", "again"), ("asked",)]


def test_what_is_felt_without_damage_is_no_sign_that_damage_was_accepted():
    kills = Part(KILLS, cases=(case("kill", bad(LOST)),))
    damaged = Part(DAMAGE, cases=(case("flip", bad(TAKEN, LOST)),))
    assert [one.kind for one in findings(checked(kills, damaged))] == ["state-lost"]
    assert [one.kind for one in findings(checked(damaged))] == ["corrupt-accepted"]


def test_what_is_blocked_or_undecided_is_no_finding_and_no_pass():
    check = checked(Part("a", blocked="the job never saved"), Part("b", cases=(case("x", OPEN),)), left_out=("c: 3 states",))
    said = text(check)
    assert check.outcome == "INCONCLUSIVE"
    assert "INCONCLUSIVE a: the job never saved" in said
    assert "could not be judged:\n  b: x: nobody knows; see runs/x" in said
    assert "left out:\n  c: 3 states" in said


def test_a_stated_sample_is_a_pass():
    assert checked(Part("a", cases=(case("x", GOOD),), stated=True, left_out=2), left_out=("a: 2",)).outcome == "PASS"
    assert checked(Part("a", cases=(case("x", GOOD),), left_out=2)).outcome == "INCONCLUSIVE"


def test_junit_has_a_case_for_each_case_and_holds_any_text():
    odd = fail("resume-crashed", "completion", "said \x1b[31m<&>\x00", component="process", expected="a resume", found="")
    check = checked(
        Part("p", cases=(case("good", GOOD), case("odd <&>", bad(odd)), case("open", OPEN))), Part("q", blocked="why")
    )
    root = ET.fromstring(xml.junit(check_document(["harness", "check"], check)))
    assert {name: root.get(name) for name in ("tests", "failures", "skipped")} == {"tests": "4", "failures": "1", "skipped": "2"}
    suite = root.find("testsuite[@name='p']")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failure = suite.find("testcase[@name='odd <&>']/failure")
    assert failure.get("type") == "resume-crashed"
    assert "repeat: harness replay" in failure.text


def test_markdown_is_a_table_and_the_findings():
    check = checked(Part("p | q", cases=(case("x", bad(LOST)),)), left_out=("much",))
    said = summary.markdown(check_document(["harness", "check"], check))
    assert said.startswith("## harness check: ❌ FAIL\n")
    assert "| FAIL | p \\| q | 0 of 1 case held |" in said
    assert "### 1. state-lost (scaler)" in said
    assert "- much" in said


def test_what_nothing_has_felt_is_a_note_once_and_no_finding():
    best = Unfelt("stopper.best", "counters", "=0x1.8p+0", "=inf")
    seen = replace(GOOD, unfelt=(best, Unfelt("history", "counters", "0123", "=[]")))
    check = checked(Part(KILLS, cases=(case("early", GOOD), case("late", seen))), Part("c", exploration(judged("x", seen))))
    document = check_document(["harness", "check"], check)
    assert (document.outcome, document.findings) == ("PASS", ())
    assert [row["name"] for row in document.unfelt] == ["stopper.best", "history"]
    note = "felt by no loss: stopper.best (1.5 in the uninterrupted run, inf after the load), history\n"
    assert f"note:\n  changed during training, not restored by the load, {note}" in summary.text(document)
    assert parse_document(to_text(document), Path("x")).unfelt == document.unfelt
    silent = check_document(["harness", "check"], checked(Part(KILLS, cases=(case("early", GOOD),))))
    assert (silent.notes, silent.unfelt) == ((), ())
