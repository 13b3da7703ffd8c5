"""Nights that are killed: nothing may be left running, what was done can be judged, and `--continue` goes on.

Run as a program (`scripts/killed-nights`), it kills so many nights at random moments: of a job without torch, and of the
reference trainer with its canary, by SIGKILL, Ctrl-C and the end of the terminal in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from harness.case import judge_again
from harness.chaos.journal import read

TIMEOUT_S = 900
TRAINER = Path(__file__).parents[1] / "quality" / "double_faults" / "trainer.py"
QUICK = ("--no-canary", "--launch", "cold", "--jobs", "4", "--faults", "kills,damage", "--seed", "3")
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGHUP)
# What Python prints of a Ctrl-C that came in hypothesis's callback of the garbage collector, and drops.
LOST = re.compile(r"Exception ignored in: <function gc_cumulative_time(?s:.)*?\nKeyboardInterrupt: *\n")
CASES = 4
# Of a night that is left alone, on two quiet cores; a later moment finds it ended.
LASTS_S = {"small": 7.0, "reference": 18.0}


def command(out, *options, bug=""):
    """A night of the job without torch."""
    job = [sys.executable, "-S", str(TRAINER), "{ckpt}", *([bug] if bug else [])]
    return [sys.executable, "-m", "harness.cli", "chaos", "--out", str(out), *options, "--", *job]


def of_reference(out, *options):
    """A night of the reference trainer on two ranks, from a preloaded process."""
    return [sys.executable, "-m", "harness.cli", "chaos", "--reference", "sharded", "--out", str(out), "--jobs", "2", *options]


def ours(folder):
    """The processes that work for a night in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except (psutil.Error, OSError):
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(process)
    return found


def kill_once(words: list[str], out: Path, number: signal.Signals, wait: Callable[[subprocess.Popen[str]], None]) -> bool:
    """Starts a night of four cases, kills it after a while, and goes on with it; asserts that nothing is lost or left.

    Returns:
        Whether it was killed: it may have ended before.
    """
    night = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait(night)
    if night.returncode is None:  # else it had ended, and is known by no number
        os.killpg(night.pid, number) if number == signal.SIGINT else night.send_signal(number)
    said = night.communicate(timeout=TIMEOUT_S)[1]
    assert "Traceback" not in LOST.sub("", said), said
    _, left = psutil.wait_procs(ours(out), timeout=60)
    assert left == [], [process.cmdline() for process in left]
    expected = 130 if number == signal.SIGINT else -number
    assert night.returncode in (expected, -number, 0, 3), (night.returncode, said)
    for case in out.glob("*/cases/*"):
        assert judge_again(case).outcome in ("PASS", "FAIL", "INCONCLUSIVE") if (case / "golden").is_dir() else True
    journals = list(out.glob("*/night.jsonl"))
    if not journals:
        return True  # it had not begun
    (journal,) = journals
    before = [entry for entry in read(journal)[0] if entry["event"] == "finished"]
    # One that was killed while it said what it had found has nothing to go on with.
    killed = night.returncode in (expected, -number) and read(journal)[0][-1]["event"] != "ended"
    if killed:
        words = [sys.executable, "-m", "harness.cli", "chaos", "--continue", str(journal.parent), "--out", str(out)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode in (0, 3), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    entries = read(journal)[0]
    finished = [entry["number"] for entry in entries if entry["event"] == "finished"]
    assert sorted(finished) == list(range(1, CASES + 1))
    assert [entry for entry in entries if entry["event"] == "finished"][: len(before)] == before
    assert entries[-1]["event"] == "ended"
    return killed


def _after(moment_s: float, night: subprocess.Popen[str]) -> None:
    """So long after its first word: until then Python is reading modules, and answers Ctrl-C itself."""
    assert night.stderr is not None
    night.stderr.readline()
    with contextlib.suppress(subprocess.TimeoutExpired):
        night.wait(moment_s)


def main() -> None:
    """Kills so many nights, 50 unless said otherwise, and prints a line for each; those that had ended before are not counted."""
    # A shell that starts this in the background has Ctrl-C ignored, by all that is started from here too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    kills = 0
    for number in itertools.count():
        if kills == many:
            break
        chance, how, sort = random.Random(number), SIGNALS[number % 3], ("small", "reference")[number % 2]
        moment_s = chance.uniform(0.2, LASTS_S[sort])
        folder = Path(tempfile.mkdtemp(prefix="killed-"))
        options = ("--budget", "14m", "--cases", str(CASES))
        words = command(folder, *QUICK, *options) if sort == "small" else of_reference(folder, *options)
        killed = kill_once(words, folder, how, partial(_after, moment_s))
        kills += killed
        what = "killed, and went on" if killed else "had ended"
        print(f"night {number + 1}, {kills} of {many} kills: {sort}, {how.name} after {moment_s:.1f} s: {what}", flush=True)
        shutil.rmtree(folder)
    print(f"{number} nights, {kills} of them killed: nothing left running, nothing lost")


if __name__ == "__main__":
    main()
