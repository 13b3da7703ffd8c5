"""`harness report`, `--shard` and the page as a user types them, on real runs."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from harness.plan import make_plan, write_plan
from harness.scenario import job

DEADLINE_S = 240


def harness(folder, *words):
    command = [sys.executable, "-m", "harness.cli", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_replay_leaves_results_of_every_kind_and_a_report_of_its_run_says_the_same(tmp_path):
    faults, defects = "sigkill rank 0 at step 6", ("no-optimizer",)
    write_plan(make_plan(job("single", ranks=1, steps=8, name="lost", faults=faults, defects=defects)), tmp_path / "plan.toml")
    files = ("--json", "r.json", "--junit", "r.xml", "--summary", "r.md", "--html", "r.html")
    done = harness(tmp_path, "replay", "plan.toml", *files)
    assert done.returncode == 1, done.stdout + done.stderr
    (case,) = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert (case["verdict"], case["kind"], case["component"]) == ("FAIL", "diverged", "optimizer")
    assert ET.parse(tmp_path / "r.xml").getroot().get("failures") == "1"
    assert "### 1. diverged (optimizer)" in (tmp_path / "r.md").read_text()
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") >= 4
    assert "sigkill rank 0 at step 6" in page
    again = harness(tmp_path, "report", "runs", "--html", "again.html", "--pack", "evidence.tar.gz", "--artifact-limit", "1MB")
    assert again.returncode == 1, again.stdout + again.stderr
    assert "1. diverged (optimizer): loss differs at step " in again.stdout
    assert again.stdout.splitlines()[-1] == "FAIL: 1 finding; 1 case"
    assert (tmp_path / "evidence.tar.gz").stat().st_size <= 1_000_000
    assert "packed into evidence.tar.gz" in again.stderr


def test_the_shares_of_a_check_together_are_the_whole(tmp_path):
    small = ("--reference", "single", "--world-size", "1", "--no-recovery", "--crash-points", "9", "--power-cut", "none")
    words = ("check", *small, "--defect", "in-place")
    whole = harness(tmp_path, *words, "--out", "whole", "--json", "whole.json")
    shares = [harness(tmp_path, *words, "--shard", f"{n}/2", "--out", f"share-{n}") for n in (1, 2)]
    merged = harness(tmp_path, "report", "--merge", "share-1", "share-2", "--out", "merged")
    said = [one.stdout + one.stderr for one in (whole, *shares, merged)]
    assert (whole.returncode, merged.returncode) == (1, 1), said
    one, other = (json.loads((tmp_path / name).read_text()) for name in ("whole.json", "merged/result.json"))
    assert [one["summary"][key] for key in ("pass", "fail", "inconclusive")] == [
        other["summary"][key] for key in ("pass", "fail", "inconclusive")
    ], said
    assert sorted(case["fault"] for case in one["cases"]) == sorted(case["fault"] for case in other["cases"])
    keys = ("crash_points", "states", "distinct", "judged", "resumes", "left_out", "not_asked")
    for mine, theirs in zip(one["coverage"], other["coverage"], strict=True):
        assert {key: mine.get(key) for key in keys} == {key: theirs.get(key) for key in keys}
    assert {finding["kind"] for finding in one["findings"]} == {finding["kind"] for finding in other["findings"]}
    alone = harness(tmp_path, "report", "--merge", "share-1", "--out", "alone")
    assert alone.returncode in (1, 3)
    assert "1 share missing: 2/2" in alone.stdout


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ((), ["nothing to report on"]),
        (("nowhere", "--runs", "x"), ["nowhere does not exist", "--runs x: expected how many"]),
        (("empty",), ["empty holds no run directory (with a plan.toml) and no result.json"]),
        (
            ("empty", "--html", "no/x.html", "--pack", "no/y.tgz"),
            ["cannot write no/x.html: there is no", "cannot write no/y.tgz"],
        ),
        (("empty", "--merge", "--artifact-limit", "lots"), ["--merge needs --out DIR", "--artifact-limit lots: expected a size"]),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path, words, texts):
    (tmp_path / "empty").mkdir()
    done = harness(tmp_path, "report", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [text for text in texts if text not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_help_has_an_example():
    assert "Example: harness report" in harness(None, "report", "--help").stdout


PLAIN = "import pytest\n\n@pytest.mark.parametrize('n', range(11))\ndef test_plain(n): pass\n"


class Passed:
    """Which tests have passed."""

    def __init__(self):
        self.names = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid.partition("::")[2])


def test_the_shares_of_a_suite_are_disjoint_complete_and_balanced(pytester):
    pytester.makepyfile(PLAIN)
    seen = []
    for share in ("1/3", "2/3", "3/3"):
        passed = Passed()
        result = pytester.runpytest_inprocess("--shard", share, plugins=[passed])
        result.assert_outcomes(passed=len(passed.names), deselected=11 - len(passed.names))
        result.stdout.fnmatch_lines([f"resume-harness: share {share} of the tests"])
        assert len(passed.names) in (3, 4)
        seen += passed.names
    assert sorted(seen) == sorted(f"test_plain[{n}]" for n in range(11))


def test_workers_agree_on_the_share(pytester):
    pytester.makepyfile(PLAIN)
    pytester.runpytest_subprocess("--shard", "1/3", "-n", "2", timeout=DEADLINE_S).assert_outcomes(passed=4)


def test_a_share_that_is_none_and_files_that_cannot_be_written_are_refused_before_any_test(pytester):
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_inprocess("--shard", "5/4", "--harness-json", "no/x.json")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--shard 5/4: expected a share of all*", "*--harness-json no/x.json: there is no directory *"])


def test_the_results_of_a_suite_are_written(pytester):
    pytester.makepyfile(
        "from harness import job\n"
        "def test_a(check_resume):\n"
        "    check_resume(job('single', ranks=1, steps=8, faults='sigkill rank 0 at step 6'))\n"
    )
    files = ("--harness-json", "r.json", "--harness-html", "r.html", "--shard", "1/1")
    pytester.runpytest_subprocess("-p", "no:randomly", *files, timeout=DEADLINE_S).assert_outcomes(passed=1)
    found = json.loads((pytester.path / "r.json").read_text())
    (case,) = found["cases"]
    assert (case["title"].rpartition("::")[2], case["verdict"], found["shard"]) == ("test_a", "PASS", "1/1")
    assert "test_a" in (pytester.path / "r.html").read_text()
