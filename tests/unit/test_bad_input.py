"""Damaged run directories: INCONCLUSIVE with the reason, or wrong usage; never a crash, never a PASS for what is not known.

What is asserted of a change of any log of an attempt, or of the uninterrupted run: the case is INCONCLUSIVE, whatever else the
oracles see. Of the one record that is not sealed, `ended` itself, of `baseline.json` and of the replay file: no exception but
UsageError, and no oracle that crashes. Of logs without a seal, as older versions wrote them: the same, and no PASS where a record
is gone that an oracle needs (`NEEDED`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import stored_run

from harness.case import judge_again
from harness.cli import main
from harness.errors import UsageError
from harness.oracle.verdict import Verdict
from harness.plan import read_plan
from harness.report.text import render

LOGS = [
    *(f"attempt-00{n}/{name}" for n in (0, 1) for name in ("rank-0.jsonl", "rank-1.jsonl", "attempt.jsonl")),
    "golden/rank-0.jsonl",
    "golden/rank-1.jsonl",
]
# Of logs without a seal: (file, event) of records that an oracle cannot do without.
NEEDED = {
    "rank": {"resume", "end", "batch", "load"},
    "attempt": {"launched", "exited", "ended", "fired"},
}
HUGE = 10**400
VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    HUGE,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "nan",
    "\ud800",
    "x" * 500,
    [],
    [[[]]],
    {},
    {"a": [1]},
]


@functools.cache
def plain() -> Path:
    """The healthy case, made once."""
    return stored_run(Path(tempfile.mkdtemp()) / "run")


@pytest.fixture(scope="module", autouse=True)
def _tidy():
    yield
    shutil.rmtree(plain().parent, ignore_errors=True)
    plain.cache_clear()


def copy(tmp: str) -> Path:
    return Path(shutil.copytree(plain(), Path(tmp) / "run"))


def judged(run: Path) -> Verdict | None:
    """The verdict; None where the run directory is refused as a whole."""
    try:
        verdict = judge_again(run)
    except UsageError:
        return None
    crashed = [finding.message for finding in verdict.findings if "crashed" in finding.message]
    assert crashed == []
    return verdict


def without_seal(run: Path) -> None:
    for file in run.glob("attempt-*/attempt.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        kept = [{key: value for key, value in record.items() if key not in ("sealed", "log")} for record in records]
        file.write_text("".join(json.dumps(record) + "\n" for record in kept))
    facts = json.loads((run / "golden/baseline.json").read_text())
    del facts["sealed"]
    (run / "golden/baseline.json").write_text(json.dumps(facts))


def place(draw, lines: list[bytes]) -> int:
    return draw(st.integers(0, len(lines) - 1))


@st.composite
def mutation(draw):
    """From the bytes of a log to other bytes."""
    kind = draw(st.sampled_from(["delete", "double", "swap", "cut", "flip", "junk", "value", "field", "mix"]))
    a, b, value = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6)), draw(st.sampled_from(VALUES))

    def change(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        if not lines:
            return b"{}\n"
        i, j = a % len(lines), b % len(lines)
        if kind == "delete":
            del lines[i]
        elif kind == "double":
            lines.insert(j, lines[i])
        elif kind == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "cut":
            return content[: a % len(content)]
        elif kind == "flip":
            at = a % len(content)
            return content[:at] + bytes([content[at] ^ (1 << b % 8)]) + content[at + 1 :]
        elif kind == "junk":
            lines.insert(i, [b"\xff\xfe\n", b"null\n", b"[1]\n", b'{"event": 3}\n', b"[" * 5000 + b"\n", b"\0\n"][b % 6])
        elif kind == "mix":  # two writers at once
            lines[i] = lines[i][: len(lines[i]) // 2] + lines[j]
        else:
            record = json.loads(lines[i])
            key = sorted(record)[b % len(record)]
            if kind == "field":
                del record[key]
            else:
                record[key] = value
            lines[i] = json.dumps(record, default=str).encode("utf-8", "surrogatepass") + b"\n"
        return b"".join(lines)

    return change


def unsealed_record(name: str, before: bytes, after: bytes) -> bool:
    """Whether only the last record of `attempt.jsonl`, which is the seal itself, was changed."""
    start = before.rstrip(b"\n").rfind(b"\n") + 1
    return name.endswith("attempt.jsonl") and after[:start] == before[:start] and after.count(b"\n") == before.count(b"\n")


def test_the_case_itself_passes():
    verdict = judged(plain())
    assert verdict is not None
    assert (verdict.outcome, verdict.findings) == ("PASS", ())


@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(LOGS), change=mutation())
def test_a_changed_log_is_inconclusive_whatever_else_it_says(name, change):
    with tempfile.TemporaryDirectory() as tmp:
        run = copy(tmp)
        before = (run / name).read_bytes()
        after = change(before)
        (run / name).write_bytes(after)
        verdict = judged(run)
        if after != before and not unsealed_record(name, before, after):
            assert verdict is not None
            assert verdict.outcome == "INCONCLUSIVE", verdict.findings
            assert verdict.findings[0].void
            assert verdict.diagnosis is None


@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(LOGS), change=mutation())
def test_a_changed_log_without_a_seal_makes_no_oracle_crash(name, change):
    with tempfile.TemporaryDirectory() as tmp:
        run = copy(tmp)
        without_seal(run)
        (run / name).write_bytes(change((run / name).read_bytes()))
        judged(run)


@pytest.mark.parametrize("name", LOGS[:6])
def test_a_record_that_an_oracle_needs_is_missed_without_a_seal_too(name, tmp_path):
    run = Path(shutil.copytree(plain(), tmp_path / "run"))
    without_seal(run)
    lines = (run / name).read_bytes().splitlines(keepends=True)
    needed = NEEDED["attempt" if name.endswith("attempt.jsonl") else "rank"]
    tried = set()
    for number, line in enumerate(lines):
        record = json.loads(line)
        event = "load" if record.get("moment") == "load" else record["event"]
        # How a rank ended that was killed, and what it did that was done again, no promise depends on.
        if event not in needed or event in tried or ("attempt-000" in name and event in ("batch", "exited")):
            continue
        tried.add(event)
        (run / name).write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        verdict = judged(run)
        assert verdict is not None
        assert verdict.outcome != "PASS", (name, event)
    (run / name).write_bytes(b"".join(lines))
    assert tried


@settings(max_examples=60, deadline=None)
@given(change=mutation())
def test_a_changed_baseline_is_refused_or_judged(change):
    with tempfile.TemporaryDirectory() as tmp:
        run = copy(tmp)
        file = run / "golden/baseline.json"
        file.write_bytes(change(file.read_bytes()))
        judged(run)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_changed_replay_file_is_refused_or_read(data):
    content = (plain() / "plan.toml").read_bytes()
    lines = content.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(content) - 1))
    line = data.draw(st.integers(0, len(lines) - 1))
    word = data.draw(
        st.sampled_from(
            ["1" * 5000, "[" * 3000, "nan", "inf", '"\\ud800"', "{}", "[[]]", "-1", "1e999", "true", '"x"', "'''", "\0"]
        )
    )
    kind = data.draw(st.sampled_from(["cut", "flip", "delete", "double", "value"]))
    if kind == "cut":
        content = content[:at]
    elif kind == "flip":
        content = content[:at] + bytes([content[at] ^ (1 << data.draw(st.integers(0, 7)))]) + content[at + 1 :]
    elif kind == "delete":
        content = b"".join(lines[:line] + lines[line + 1 :])
    elif kind == "double":
        content = b"".join([*lines[:line], lines[line], *lines[line:]])
    else:
        head = lines[line].partition(b"=")[0]
        content = b"".join([*lines[:line], head + b"= " + word.encode() + b"\n", *lines[line + 1 :]])
    with tempfile.TemporaryDirectory() as tmp:
        file = Path(tmp) / "plan.toml"
        file.write_bytes(content)
        with contextlib.suppress(UsageError):
            read_plan(file)


# --- the kinds of bad input by name


def change_records(file: Path, change) -> None:
    """Rewrites a log, record by record; None leaves one out."""
    records = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


def reason(run: Path) -> str:
    verdict = judged(run)
    assert verdict is not None
    assert verdict.outcome == "INCONCLUSIVE", verdict.findings
    return verdict.findings[0].message


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(plain(), tmp_path / "run"))


def test_a_log_of_another_version(run):
    change_records(run / "attempt-001/attempt.jsonl", lambda r: r | {"log": "harness.log/9"} if r["event"] == "launched" else r)
    assert "recorded by another version ('harness.log/9'); expected 'harness.log/1'" in reason(run)


def test_a_seal_that_was_taken_away(run):
    change_records(run / "attempt-001/attempt.jsonl", lambda r: {k: v for k, v in r.items() if k != "sealed"})
    assert "has no seal" in reason(run)


def test_a_version_that_was_taken_away(run):
    change_records(run / "attempt-001/attempt.jsonl", lambda r: {k: v for k, v in r.items() if k != "log"})
    assert "no version" in reason(run)


def test_a_missing_rank(run):
    (run / "attempt-001/rank-1.jsonl").unlink()
    assert "rank-1.jsonl is gone" in reason(run)


def test_a_rank_too_many(run):
    shutil.copy(run / "attempt-001/rank-1.jsonl", run / "attempt-001/rank-2.jsonl")
    assert "rank-2.jsonl was not there" in reason(run) or "records of rank 1" in reason(run)


def test_a_run_that_is_still_being_written(run):
    change_records(run / "attempt-001/attempt.jsonl", lambda r: None if r["event"] in ("ended", "exited") else r)
    file = run / "attempt-001/rank-0.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:6]))
    assert "was never ended: the harness stopped during it, or it still runs" in reason(run)
    assert "next: judge it again once it has ended" in render(judged(run), run)


def test_a_run_whose_uninterrupted_run_is_not_there_yet(run):
    shutil.rmtree(run / "golden")
    said = render(judged(run), run)
    assert said.startswith("INCONCLUSIVE not-comparable: ")
    assert "cannot read the baseline" in said


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-20]), Path.touch])
def test_what_the_harness_saw_of_the_uninterrupted_run_is_sealed(run, change):
    file = run / "golden/attempt.jsonl"
    file.write_text(json.dumps({"event": "files", "moment": "end", "files": {}}) + "\n")
    facts = json.loads((run / "golden/baseline.json").read_text())
    facts["sealed"]["attempt.jsonl"] = [file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()]
    (run / "golden/baseline.json").write_text(json.dumps(facts))
    change(file)
    if change is Path.touch:
        assert judged(run).outcome == "PASS"
    else:
        assert "attempt.jsonl" in reason(run)


def test_half_a_character_is_shown_as_what_it_is(run, monkeypatch):
    facts = json.loads((run / "golden/baseline.json").read_text())
    (run / "golden/baseline.json").write_text(json.dumps(facts | {"unstable": "bad \ud800 word"}))
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", shown)
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(run)])
    shown.flush()
    assert ended.value.code == 3
    assert b"bad \\ud800 word" in shown.buffer.getvalue()


def test_logs_of_two_ranks_in_one_file(run):
    without_seal(run)
    other = (run / "attempt-001/rank-1.jsonl").read_text().splitlines(keepends=True)
    mine = (run / "attempt-001/rank-0.jsonl").read_text().splitlines(keepends=True)
    (run / "attempt-001/rank-0.jsonl").write_text("".join(mine[:5] + other[5:8] + mine[5:]))
    assert "rank-0.jsonl has records of rank 1" in reason(run)


def test_ranks_that_did_not_do_the_same_batches_in_the_uninterrupted_run(run):
    without_seal(run)
    change_records(run / "golden/rank-1.jsonl", lambda r: None if (r["event"], r.get("batch")) == ("batch", 7) else r)
    assert "did not do the same batches" in reason(run)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), HUGE])
def test_numbers_that_are_none(run, value):
    without_seal(run)
    change_records(run / "attempt-001/rank-1.jsonl", lambda r: r | {"step": value} if r["event"] == "resume" else r)
    assert "no usable 'step' in its 'resume' record" in reason(run) or "is not JSON" in reason(run)


def test_a_log_that_cannot_be_read(run):
    (run / "attempt-001/rank-1.jsonl").unlink()
    (run / "attempt-001/rank-1.jsonl").mkdir()
    assert "rank-1.jsonl" in reason(run)
