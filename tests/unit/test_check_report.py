"""What `harness check` prints: coverage, each cause once, what was left out; and the worst outcome of all parts."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.case import Workbench
from harness.causes import Cause, Judged
from harness.check import Case, Check, Part, Parts, Request, worst
from harness.check_command import _Shared
from harness.check_plan import OTHERWISE, Job
from harness.crash_states import CrashState, Enumeration
from harness.errors import UsageError
from harness.explore import Exploration
from harness.oracle.finding import fail
from harness.oracle.verdict import Verdict
from harness.report.exploration import check_json, check_text
from harness.scenario import Command, job
from harness.store import Baseline
from harness.trace import SaveWindow

FAULT = "sigkill all ranks before rename step-2/manifest.json.tmp by rank 0 when others wait"


def state(name, owed=()):
    return CrashState((FAULT,), (1,), (0,), None, None, 0, None, (), True, {}, name, owed)


def judged(name, verdict, count=1):
    return Judged(state(name), count, verdict, Path("runs") / name, [state(name)] * count)


GOOD = Verdict("good", FAULT, "PASS")
FOUND = fail("last-good-lost", "retention", "step-1 is gone", component="checkpoint-files", expected="step-1", found="nothing")
BAD = Verdict("bad", FAULT, "FAIL", (FOUND,), "checkpoint-files")


def exploration(*all_judged, causes=(), **more):
    states = tuple(member for one in all_judged for member in one.members)
    return Exploration(job(), None, Enumeration(states, 7, 0, 2), all_judged, len(all_judged), causes, exploring_s=2.0, **more)


def checked(*parts):
    return Check(Request(job()), parts, 1.0, 4.0)


def cause(verdict=BAD):
    one = judged("bad", verdict, 3)
    text = "rank 0's rename of step-*/manifest.json does not wait for rank 1's rename"
    words = ("order", verdict.kind, verdict.component, text, 3, one, "rename", 0, "step-2/manifest.json", "rank 1's rename")
    return Cause(*words, (Path("runs/bad"),))


def test_the_worst_outcome_counts():
    assert worst(set()) == "PASS"
    assert worst({"PASS", "INCONCLUSIVE"}) == "INCONCLUSIVE"
    assert worst({"INCONCLUSIVE", "FAIL", "PASS"}) == "FAIL"


def test_a_pass_says_what_was_covered():
    text = check_text(checked(Part("crash points of s", exploration(judged("good", GOOD, 5)))))
    assert text.splitlines() == [
        "PASS crash points of s",
        "  7 crash points, 5 states (2 of them after a power cut), 1 distinct, 1 real resume: 100 % covered in 2.0 s",
        "PASS: 0 findings; recorded in 1.0 s, all in 4.0 s",
    ]


def test_a_cause_is_said_once_with_its_repeat_line():
    found = checked(Part("crash points of s", exploration(judged("good", GOOD), judged("bad", BAD, 3), causes=(cause(),))))
    assert found.outcome == "FAIL"
    lines = check_text(found).splitlines()
    assert lines[2] == (
        "  1. last-good-lost (checkpoint-files): 3 states fail: "
        "rank 0's rename of step-*/manifest.json does not wait for rank 1's rename"
    )
    assert lines[3:6] == [
        "     the first: step-1 is gone",
        f"     fault: {FAULT}",
        "     repeat: harness replay runs/bad/plan.toml",
    ]
    document = check_json(["harness", "check"], found)
    assert document["summary"] == {"pass": 1, "fail": 1, "inconclusive": 0, "cases_per_min": 30.0}
    (entry,) = document["causes"]
    assert (entry["sort"], entry["states"], entry["replay"]) == ("order", 3, "runs/bad/plan.toml")


def test_what_a_budget_or_a_sample_leaves_out_is_said():
    over = checked(Part("p", exploration(judged("good", GOOD), left_out=3)))
    assert over.outcome == "INCONCLUSIVE"
    assert "3 distinct states left out: the budget was used up (--budget)" in check_text(over)
    sample = checked(Part("p", exploration(judged("good", GOOD), not_asked=2)))
    assert sample.outcome == "PASS"
    assert "a sample: 2 distinct states left out" in check_text(sample)


def test_what_cannot_be_explored_is_no_pass():
    found = checked(Part("p", exploration(inconclusive="the job does not write the same in every run: x")))
    assert found.outcome == "INCONCLUSIVE"
    assert "nothing can be said: the job does not write the same in every run: x" in check_text(found)


def test_cases_that_were_run_from_their_start():
    part = Part("interleavings of s", None, (Case("held", GOOD, Path("a")), Case("held too", BAD, Path("b"))), notes=("a note",))
    lines = check_text(checked(part)).splitlines()
    assert lines[:3] == ["FAIL interleavings of s: 1 of 2 cases resumed exactly", "  a note", "  held too"]
    assert checked(Part("x", left_out=1)).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("names", "attacked"),
    [
        (("step-4", "step-8", "step-12"), [1]),
        (("last.pt", "last.pt", "last.pt"), [1]),
        (("step-4",), [0]),
        (("best.pt", "best.pt", "last.pt", "best.pt", "last.pt"), [1, 4]),
        (("last.pt", "best.pt", "final.pt"), [0, 1]),
        ((), []),
    ],
)
def test_the_second_save_of_each_sort_of_name_is_attacked(tmp_path, names, attacked):
    saves = [SaveWindow(name, 10 * index, 10 * index + 9, None) for index, name in enumerate(names)]
    recordings = SimpleNamespace(recorded=SimpleNamespace(trace=SimpleNamespace(saves=lambda: saves)))
    bench = Workbench(tmp_path, tmp_path, None)
    parts = Parts(Request(job(), save=None), recordings, bench, tmp_path, None, lambda _: None, lambda *_: None)
    assert parts.windows() == [saves[index] for index in attacked]


def test_no_recovery_is_recorded_once_the_budget_is_over(tmp_path, monkeypatch):
    states = [SimpleNamespace(faults=(f"sigkill rank 0 before write {name}",)) for name in "ab"]
    monkeypatch.setattr("harness.check.untidy_states", lambda *_: states)
    monkeypatch.setattr("harness.check.exploring.record_recovery", lambda *_: pytest.fail("recorded, with no time left"))
    recordings, heard = SimpleNamespace(points=lambda window: None), []
    bench = Workbench(tmp_path, tmp_path, None)
    parts = Parts(Request(job()), recordings, bench, tmp_path, 0.0, heard.append, lambda *_: None)
    found = list(parts.recoveries(SaveWindow("s", 0, 1, None), None))
    assert [(part.left_out, part.exploration) for part in found] == [(1, None), (1, None)]
    assert [part.name for part in found] == heard
    assert heard[0] == "crash points of the recovery after 'sigkill rank 0 before write a'"
    assert list(tmp_path.iterdir()) == []
    # A check of a command says it in its list of what was left out.
    say, progress = heard.append, lambda *_: None
    shared = _Shared(parts.request, bench, tmp_path, 0.0, 0.0, say, progress, say, None, Job.of(Baseline(0, {})), 1.0)
    assert {shared._stated(part).outcome for part in found} == {"PASS"}
    assert shared.left_out == heard


def test_a_restart_that_never_ends_well_has_no_crash_points_and_hides_no_other(tmp_path, monkeypatch):
    states = [SimpleNamespace(faults=(f"sigkill rank 0 before write {name}",)) for name in "ab"]
    asked = []

    def record(recorded, state, *_):
        asked.append(state.faults)
        raise UsageError(["the job did not come to its end although nothing was done to it"])

    monkeypatch.setattr("harness.check.untidy_states", lambda *_: states)
    monkeypatch.setattr("harness.check.exploring.record_recovery", record)
    recordings = SimpleNamespace(points=lambda window: None, recorded=None)
    bench = Workbench(tmp_path, tmp_path, None)
    parts = Parts(Request(job()), recordings, bench, tmp_path, None, lambda _: None, lambda *_: None)
    found = list(parts.recoveries(SaveWindow("s", 0, 1, None), None))
    assert len(found) == len(asked) == 2
    say, progress = lambda _: None, lambda *_: None
    shared = _Shared(parts.request, bench, tmp_path, 0.0, 0.0, say, progress, say, None, Job.of(Baseline(0, {})), 1.0)
    assert {shared._stated(part).outcome for part in found} == {"PASS"}
    name = "crash points of the recovery after 'sigkill rank 0 before write a'"
    assert shared.left_out[0] == f"{name}: that restart did not come to its end, so it has none; see {tmp_path / 'recovery-0'}"


@pytest.mark.parametrize(("left_s", "alone", "beside"), [(102.0, 39, 32), (20.0, 7, 6), (3.0, 6, 6)])
def test_crash_points_leave_room_for_the_cases_of_other_kinds(tmp_path, left_s, alone, beside):
    request = Request(job(), budget_s=100.0)
    bench, end, say = Workbench(tmp_path, tmp_path, None), time.monotonic() + left_s, lambda _: None
    shared = _Shared(request, bench, tmp_path, 0.0, end, say, lambda *_: None, say, None, Job.of(Baseline(0, {})), 1.0)
    assert (shared._limit(0.4), shared._limit(0.4, 9)) == (alone, beside)


def test_the_control_command_is_tried_before_any_save_is_attacked(tmp_path, monkeypatch):
    workload = Command(
        command=("{python}", "train.py", "{ckpt}"), probe=True, control_command=("{python}", "train.py", "--no-save")
    )
    request = Request(job().model_copy(update={"workload": workload}))
    ran = []

    class Watched(_Shared):
        def _run(self, name, cases, *, split=True):
            ran.append(name)
            return [(planned, Case(planned.title, GOOD, tmp_path)) for planned in cases]

        def _has_written(self):
            return True

        def _attacks(self, _ran):
            ran.append("attacks")
            yield from ()

    monkeypatch.setattr("harness.check_command._nothing_to_judge", lambda *_: "")
    monkeypatch.setattr("harness.check_command._never_resumed", lambda *_: False)
    monkeypatch.setattr("harness.check_command._writes_to_tell", lambda *_: 0)
    started = SimpleNamespace(baseline=None, golden=tmp_path)
    watched = Watched(request, None, tmp_path, 0.0, None, None, None, None, started, Job.of(Baseline(0, {})), 1.0)
    assert [part.name for part in watched.all()][-1] == OTHERWISE
    assert ran == ["the control, kills between saves, SIGTERM", "the control command", "attacks"]
