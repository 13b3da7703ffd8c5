"""The corpus folder."""

from __future__ import annotations

import json
import os

import pytest

from harness.chaos.corpus import FAILING, FIXED, Corpus, for_job, identity
from harness.chaos.coverage import Coverage
from harness.errors import UsageError
from harness.plan import write_plan
from harness.scenario import Scenario, job

CASE = job("sharded", ranks=2, faults="sigkill rank 1 at step 3", defects=("no-rng",))
GROUP = ("diverged", "rng")


def command(*words, directory="/"):
    return Scenario.build({"workload": {"kind": "command", "command": words, "directory": directory}, "world_sizes": (1,)})


def test_a_failure_is_kept_once_and_read_back(tmp_path):
    corpus = Corpus(tmp_path / "corpus")
    name = corpus.keep(CASE)
    assert corpus.keep(CASE) == name == identity(CASE)
    corpus.say(FAILING, name, GROUP, "night")
    ((kept,), problems) = corpus.cases()
    assert (kept.id, kept.fixed, kept.group, kept.scenario.faults, problems) == (name, False, GROUP, CASE.faults, [])
    corpus.say(FIXED, name, GROUP, "another night")
    assert corpus.cases()[0][0].fixed


def test_a_line_that_a_killed_night_left_half_costs_that_line_only(tmp_path):
    corpus = Corpus(tmp_path)
    name = corpus.keep(CASE)
    (tmp_path / "corpus.jsonl").write_text('{"schema": "harness.cor')
    corpus.say(FIXED, name, GROUP, "night")
    (kept,), problems = corpus.cases()
    assert kept.fixed
    assert ["line 1 is left out" in problem for problem in problems] == [True]


@pytest.mark.parametrize(("kept", "now", "given"), [(60.0, 200.0, 200.0), (200.0, 60.0, 200.0)])
def test_a_case_has_the_time_that_this_machine_needs(kept, now, given):
    one, job_now = (CASE.model_copy(update={"deadline_s": seconds}) for seconds in (kept, now))
    assert for_job(one, job_now).deadline_s == given


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda text: text.replace("harness.plan/1", "harness.plan/2"), "unknown schema 'harness.plan/2'"),
        (lambda text: text.replace("sigkill rank 1", "explode rank 1"), "unknown fault word 'explode'"),
        (lambda text: text + "=", "is no TOML"),
    ],
)
def test_a_file_of_another_version_is_left_alone_with_a_word(tmp_path, edit, word):
    corpus = Corpus(tmp_path)
    file = tmp_path / "cases" / f"{corpus.keep(CASE)}.toml"
    file.write_text(edit(file.read_text()))
    before = file.read_bytes()
    kept, (problem,) = corpus.cases()
    assert kept == []
    assert word in problem
    assert "left alone" in problem
    assert file.read_bytes() == before


def test_coverage_and_history_are_kept(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.end(Coverage(), {"night": "one", "cases": 3})
    assert json.loads((tmp_path / "history.jsonl").read_text())["cases"] == 3
    assert corpus.coverage() == (Coverage(), [])


def test_a_mended_job_is_told_by_its_words():
    assert for_job(CASE, job("sharded", ranks=4)).workload.defects == ()
    assert for_job(CASE, job("single")) is None
    assert for_job(command("a", "{ckpt}"), command("a", "{ckpt}", directory="/tmp")).workload.directory == "/tmp"
    assert for_job(command("a", "{ckpt}"), command("b", "{ckpt}")) is None
    assert for_job(CASE, command("a", "{ckpt}")) is None


def test_no_folder_for_it_is_wrong_usage(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to the corpus"):
        Corpus(tmp_path / "file")


def test_two_nights_may_find_the_same_at_one_moment(tmp_path, monkeypatch):
    corpus, write, other = Corpus(tmp_path), write_plan, os.getpid() + 1

    def written_by_both(plan, file):
        write(plan, file)
        if other not in asked:
            asked.append(other)
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: other)
                assert corpus.keep(CASE) == identity(CASE)

    asked = []
    monkeypatch.setattr("harness.chaos.corpus.write_plan", written_by_both)
    assert corpus.keep(CASE) == identity(CASE)
    assert [path.name for path in (tmp_path / "cases").iterdir()] == [f"{identity(CASE)}.toml"]
