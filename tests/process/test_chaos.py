"""`harness chaos` on a job without torch: what it finds, what it says, and what is left when it is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys

import pytest
from nights import QUICK, TIMEOUT_S, command, kill_once

from harness.chaos.journal import read


def chaos(out, *options, **more):
    return subprocess.run(command(out, *options, **more), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def result(out):
    (file,) = out.glob("*/result.json")
    return json.loads(file.read_text())


def test_a_bug_that_two_faults_show_is_found_repeated_made_smaller_and_kept(tmp_path):
    options = ("--budget", "14m", "--faults", "kills", "-x", "--corpus", str(tmp_path / "corpus"))
    done = chaos(tmp_path / "runs", *QUICK, *options, bug="scale-not-saved-again")
    assert done.returncode == 1, done.stdout + done.stderr
    document = result(tmp_path / "runs")
    failing = [case for case in document["cases"] if case["verdict"] == "FAIL"]
    assert {(case["kind"], case["component"]) for case in failing} == {("diverged", "scaler")}
    assert not any(case["flaky"] for case in failing)
    (group,) = document["chaos"]["groups"]
    assert group["smallest"] == [
        "sigkill all ranks at step 4 by rank 0",
        "sigkill all ranks at step 7 by rank 0 attempt 1",
    ]
    assert group["complete"]
    # What was drawn was said, with the seed, before it ran.
    assert all(f"case {number} (drawn, seed 3): ranks " in done.stderr for number in range(1, len(document["cases"]) + 1))
    assert len(list((tmp_path / "corpus" / "cases").glob("*.toml"))) == 1
    # The next night begins with it; the job was mended meanwhile.
    kept = next((tmp_path / "corpus" / "cases").glob("*.toml"))
    kept.write_text(kept.read_text().replace(', "scale-not-saved-again"', ""))
    again = chaos(tmp_path / "again", *QUICK, "--budget", "14m", "--cases", "2", "--corpus", str(tmp_path / "corpus"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"fixed: {kept.stem} of the corpus passes" in again.stdout
    assert f"case 1 (corpus {kept.stem}, seed 3)" in again.stderr
    nights = [json.loads(line) for line in (tmp_path / "corpus" / "history.jsonl").read_text().splitlines()]
    assert [night["fail"] > 0 for night in nights] == [True, False]
    # Run directories of what passed are gone.
    (folder,) = (tmp_path / "again").glob("chaos-*")
    assert list((folder / "cases").iterdir()) == []


def test_shards_draw_other_schedules_and_the_same_seed_the_same(tmp_path):
    drawn = []
    for name, shard in (("one", "1/2"), ("two", "2/2"), ("again", "1/2")):
        done = chaos(tmp_path / name, *QUICK, "--budget", "14m", "--cases", "2", "--shard", shard)
        assert done.returncode in (0, 3), done.stdout + done.stderr
        (journal,) = (tmp_path / name).glob("*/night.jsonl")
        drawn.append([entry["faults"] for entry in read(journal)[0] if entry["event"] == "drawn"])
    assert drawn[0] == drawn[2]
    assert not {tuple(faults) for faults in drawn[0]} & {tuple(faults) for faults in drawn[1]}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_a_night_that_is_killed_leaves_nothing_running_and_goes_on(tmp_path, number):
    # Not within the first lines, before there is a journal; the 9th and the following say what was drawn.
    lines = random.Random(number).randint(8, 12)

    def some_lines(night):
        for _, line in zip(range(lines), night.stderr, strict=False):
            assert "Traceback" not in line

    kill_once(command(tmp_path / "runs", *QUICK, "--budget", "14m", "--cases", "4"), tmp_path / "runs", number, some_lines)


ON_A_SMALL_DISK = """
import subprocess, sys
from harness.inject import disk, kernel
disk.private_mounts()
folder, command = sys.argv[1], sys.argv[2:]
kernel.mount("tmpfs", folder, "tmpfs", 0, "size=24m")
first = subprocess.run(command)
kernel.mount("tmpfs", folder, "tmpfs", 32, "size=400m")  # MS_REMOUNT
goes_on = [*command[: command.index("chaos") + 1], "--continue", "--out", folder]
second = subprocess.run(goes_on)
print("codes", first.returncode, second.returncode)
"""


def test_a_full_disk_ends_the_night_with_a_clear_word_and_nothing_is_lost(tmp_path):
    words = [sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), *command(tmp_path, *QUICK, "--budget", "14m", "--cases", "2")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "codes 4 0" in done.stdout, done.stdout + done.stderr
    assert f"the disk under {tmp_path}" in done.stderr
    assert "Nothing that was found is lost; make room there, then: harness chaos --continue" in done.stderr
    assert "2 schedules in" in done.stdout
    assert "Traceback" not in done.stderr
