"""What `harness check -- COMMAND` prints: every cause once over all parts, what was left out, JUnit XML and Markdown."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from test_check_report import BAD, cause, exploration, judged

from harness.baseline import first_difference
from harness.check import Case, Check, Part, Request
from harness.check_command import _nothing_to_judge
from harness.check_plan import AGAIN, DAMAGE, ERRORS, KILLS
from harness.oracle.finding import fail, inconclusive
from harness.oracle.unfelt import Unfelt
from harness.oracle.verdict import Verdict
from harness.report import junit as xml
from harness.report import summary
from harness.report.checked import check_document
from harness.report.document import parse_document, to_text
from harness.report.findings import findings
from harness.scenario import job
from harness.store import Baseline, RankLog
from harness.trace import Operation

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


WORDS = "though no fault had fired in it: KeyError: 'model' at 0x7f{0}"


def crashed(name, attempt, *others, words=WORDS):
    text = f"rank 0 ended with exit code 1 in attempt {attempt}, {words.format(name)}"
    crash = fail("resume-crashed", "completion", text, component="process", expected="a resume", found="exit code 1")
    return Verdict("bad", "none", "FAIL", (*others, crash), (*others, crash)[0].component)


GONE = fail("last-good-lost", "retention", "ckpt.pt is gone", component="checkpoint-files", expected="it", found="nothing")


def test_a_job_that_never_starts_again_is_one_finding_wherever_it_is_cut():
    resumes = Verdict("good", "none", "PASS", resumed_from=(8,))
    kills = Part(KILLS, cases=(case("early", crashed("aa", 1)), case("late", crashed("bb", 2)), case("first", GOOD)))
    explored = Part("crash points of s", exploration(judged("bad", crashed("cc", 1), 3), causes=(cause(crashed("cc", 1)),)))
    failing = Part(ERRORS, cases=(case("EIO", crashed("dd", 1, GONE)),))
    (found,) = findings(checked(kills, explored, failing))
    assert (found.kind, found.seen) == ("resume-crashed", ("early", "late", "3 states of crash points of s", "EIO"))
    # In other words: something else is broken there, too.
    torn = crashed("cc", 1, words="though no fault had fired in it: EOFError")
    other = Part("crash points of s", exploration(judged("bad", torn, 3), causes=(cause(torn),)))
    assert [one.kind for one in findings(checked(kills, other))] == ["resume-crashed"] * 2
    # One that has ever resumed crashes for what was done to it.
    assert len(findings(checked(kills, explored, Part("SIGTERM", cases=(case("asked", resumes),))))) == 2


def test_a_component_that_no_resume_restores_is_one_cause_wherever_it_is_first_felt():
    def rng(kind):
        return bad(fail(kind, "data", "other samples", component="rng.torch", expected="aa", found="bb"))

    kills = Part(KILLS, cases=(case("kill", rng("diverged")), case("late", rng("data-repeated"))))
    overflow = fail("numerics", "numerics", "counts skips", component="rng.torch", expected="1", found="2")
    others = Part("SIGTERM", cases=(case("asked", rng("state-lost")), case("skip", bad(overflow)), case("other", bad(LOST))))
    assert [(one.kind, one.component, one.seen) for one in findings(checked(kills, others))] == [
        ("diverged", "rng.torch", ("kill", "late", "asked")),
        ("numerics", "rng.torch", ("skip",)),
        ("state-lost", "scaler", ("other",)),
    ]
    felt = bad(fail("data-skipped", "data", "left out", component="none", expected="aa", found="bb"))
    nobody = bad(fail("diverged", "loss", "another loss", component="none", expected="aa", found="bb"))
    assert len(findings(checked(Part(KILLS, cases=(case("a", felt), case("b", nobody)))))) == 2, "nothing says that it is one"


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


@pytest.mark.parametrize(
    ("field", "start"), [("checkpoint", "the job names its checkpoints otherwise"), ("loss", "the job is not deterministic")]
)
def test_a_name_that_is_another_in_each_run_needs_another_remedy_than_a_loss(field, start):
    one, other = ({0: log_with(field, value)} for value in ("c_1", "c_2"))
    said = _nothing_to_judge(Baseline(1, one, unstable=first_difference(one, other)), has_written=True)
    assert said.startswith(start)
    assert "in one run" in said


def log_with(field, value):
    return RankLog(0, [{"event": "save", "rank": 0, "moment": "end", "step": 3, field: value}], [])


@pytest.mark.parametrize(("late", "num"), [(None, 1), (Operation(2, 0, 1, "rename", "rename", "a", "b", 0), 2)])
def test_what_a_save_breaks_for_good_is_what_a_kill_between_two_saves_shows(late, num):
    torn = fail("data-repeated", "data", "again", component="data", expected="aa", found="bb")
    first = Operation(1, 0, 0, "rename", "rename", "a.tmp", "a", 0)
    shown = replace(cause(), sort="gap", kind="data-repeated", component="data", gaps=((first, late),))
    kills = Part(KILLS, cases=(case("kill", bad(torn)),))
    explored = Part("crash points of s", exploration(judged("bad", BAD, 3), causes=(shown,)))
    assert len(findings(checked(kills, explored))) == num
    assert len(findings(checked(Part("SIGTERM", cases=kills.cases), explored))) == 2, "asked to end, it may have done otherwise"


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
