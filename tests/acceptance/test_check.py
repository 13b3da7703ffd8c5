"""`harness check` and `harness trace` as a user types them: what they say, what they exit with, and what they write."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DEADLINE_S = 240


def harness(folder, *words):
    command = [sys.executable, "-m", "harness.cli", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


SMALL = ("--world-size", "1", "--no-recovery", "--no-interleavings")


def test_a_healthy_trainer_passes_and_the_coverage_is_printed(tmp_path):
    done = harness(tmp_path, "check", "--reference", "single", *SMALL, "--crash-points", "5", "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS crash points of step-00000002.pt, and power cuts" in done.stdout
    assert "a sample: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("PASS: 0 findings; ")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["schema"] == "harness.result/1"
    assert found["summary"]["fail"] == 0
    (coverage,) = found["coverage"]
    assert coverage["resumes"] == 5
    assert coverage["distinct"] == coverage["judged"] + coverage["not_asked"] > 10
    assert found["causes"] == []


def test_a_broken_trainer_fails_with_its_cause_and_a_replay_that_shows_it(tmp_path):
    options = ("--defect", "no-fsync", "--crash-points", "all", "--json", "found.json")
    done = harness(tmp_path, "check", "--reference", "single", *SMALL, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "takes the content of step-*.pt by rank 0 (no fsync of the file)" in done.stdout
    cause = json.loads((tmp_path / "found.json").read_text())["causes"][0]
    assert (cause["sort"], cause["kind"], cause["component"]) == ("durability", "last-good-lost", "checkpoint-files")
    assert f"repeat: harness replay {cause['replay']}" in done.stdout
    again = harness(tmp_path, "replay", cause["replay"], "--out", tmp_path / "again")
    assert again.returncode == 1
    assert again.stdout.startswith("FAIL last-good-lost")


def test_a_budget_that_is_too_short_is_said_and_is_no_pass(tmp_path):
    done = harness(tmp_path, "check", "--reference", "single", *SMALL, "--budget", "0.001s")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the budget was used up (--budget)" in done.stdout


def test_two_checks_of_one_job_at_once_have_a_folder_each(tmp_path):
    options = (*SMALL, "--crash-points", "1", "--power-cut", "none")
    words = [sys.executable, "-m", "harness.cli", "check", "--reference", "single", *options]
    both = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [one.communicate(timeout=DEADLINE_S)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert len(list((tmp_path / "runs").glob("*/recorded-00"))) == 2


def test_a_check_that_could_not_begin_leaves_no_folder(tmp_path):
    done = harness(tmp_path, "trace", "--once", "--", sys.executable, "-c", "")
    assert done.returncode == 2, done.stdout + done.stderr
    assert list((tmp_path / "runs").glob("*/recorded-00")) != []  # it was run, and that is kept
    missing = harness(tmp_path, "trace", "--once", "--", "no-such-program")
    assert missing.returncode == 2, missing.stdout + missing.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir() if not any(path.iterdir())] == []


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ((), ["found neither of --reference FORMAT and a command"]),
        (("--reference", "single", "--", "true"), ["found both of --reference FORMAT and a command"]),
        (("--reference", "tar"), ["--reference tar: unknown format"]),
        (("--reference", "single", "--save", "x", "--jobs", "0"), ["--save x: expected", "--jobs 0: expected"]),
        (("--reference", "single", "--budget", "soon"), ["--budget soon: expected a time such as 90s, 10m or 2h"]),
        (("--reference", "single", "--crash-points", "-1"), ["--crash-points -1: expected all, or a number"]),
        (("--reference", "single", "--defect", "no-such"), ["no-such: unknown"]),
        (("--defect", "no-fsync", "--", "true"), ["--defect plants a defect in the reference trainer"]),
        (("--", "no-such-program", "{ckpt}"), ["command 'no-such-program' does not exist"]),
        (("--reference", "single", "--save", "9"), ["--save 9: the job saves 3 times"]),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path, words, texts):
    done = harness(tmp_path, "check", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [text for text in texts if text not in done.stderr] == []
    assert "Traceback" not in done.stderr


def test_a_trace_of_any_program(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys\n"
        "for n in (1, 2):\n"
        "    with open(f'{sys.argv[1]}/ckpt-{n}.tmp', 'wb') as file:\n"
        "        file.write(b'x' * 5000); file.flush(); os.fsync(file.fileno())\n"
        "    os.rename(f'{sys.argv[1]}/ckpt-{n}.tmp', f'{sys.argv[1]}/ckpt-{n}')\n"
    )
    words = ("trace", "--world-size", "1", "--json", "t.json", "--", sys.executable, "job.py", "{ckpt}")
    done = harness(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "save 2: ckpt-2, 4 operations" in done.stdout
    assert "the rename of ckpt-2 by rank 0 (no fsync of the checkpoint directory)" in done.stdout
    trace = json.loads((tmp_path / "t.json").read_text())
    assert (trace["schema"], [save["name"] for save in trace["saves"]]) == ("harness.trace/1", ["ckpt-1", "ckpt-2"])
    assert [op["operation"] for op in trace["saves"][0]["operations"]] == ["open", "write", "fsync", "rename"]
    assert trace["kept_bytes"] == 5000  # the same content twice is kept once


def test_a_trace_of_a_program_that_writes_elsewhere(tmp_path):
    words = ("trace", "--world-size", "1", "--", sys.executable, "-c", "open('here', 'w').write('x')", "{ckpt}")
    done = harness(tmp_path, *words)
    assert done.returncode == 2
    assert f"it wrote elsewhere: {tmp_path / 'here'}" in done.stderr
