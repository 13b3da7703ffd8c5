"""The live table of long work, on a real terminal: what is seen while it works, and what is left of it afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30
PROGRAM = """
import sys
from harness.report.progress import Ticker
def wait():
    sys.stdin.readline()
with Ticker() as ticker:
    ticker.part("the control, kills between saves, SIGTERM")
    ticker.note("first verdict after 9 s: PASS: [killed] at step 5, right after ckpt.pt was saved, " + 12 * "and more ")
    ticker.tick(2, 1, 5)
    ticker.part("crash points of the recovery after 'sigkill all ranks before rename ckpt.pt.tmp occurrence 2 by rank 0'")
    ticker.tick(3, 0, 12)
    wait()
    for number in range(40):
        ticker.part(f"part {number}")
        ticker.tick(1, 0, 1)
    wait()
    if "fails" in sys.argv:
        raise SystemExit("harness: it was not to be")
print("FAIL: 1 finding", file=sys.stderr)
"""


class Terminal:
    """A program on a terminal of this size, and what is to be seen there."""

    def __init__(self, columns, lines, *words):
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=ROOT,
            env={**environment, "TERM": "xterm-256color"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)

    def until(self, regex):
        """What stands on the screen once this is there."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            text = "\n".join(line.rstrip() for line in self.screen.display)
            if re.search(regex, text, re.MULTILINE):
                return text
            if not self._read(0.1) and self.process.poll() is not None:
                break
        raise AssertionError(f"no {regex!r} in:\n{text}")

    def _read(self, wait_s):
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        try:
            self._stream.feed(os.read(self._ours, 65536))
        except OSError:  # the program has closed its end
            return False
        return True

    def go_on(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self):
        """Everything that has ever stood there and was not wiped away again."""
        self.process.stdin.close()
        code = self.process.wait(DEADLINE_S)
        while self._read(0.5):
            pass
        os.close(self._ours)
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return code, "\n".join(line.rstrip() for line in (*above, *self.screen.display)).rstrip()


@pytest.mark.parametrize(("columns", "lines"), [(120, 30), (80, 24), (50, 10)])
def test_the_table_is_drawn_and_nothing_is_left_of_it(columns, lines):
    terminal = Terminal(columns, lines)
    text = terminal.until(r"3/12.* s$")
    rows = [line for line in text.splitlines() if re.search(r"\d+/\d+", line)]
    # A line each, whatever its name is: how many, a bar, how many of them fail, how many a minute, how long, how much longer.
    bar = r" +[━╸╺]{20}" if columns >= 100 else ""
    rate = r" +\d+" if columns >= 70 else ""
    assert len(rows) == 2, text
    assert re.fullmatch(rf"the control, .* 2/5{bar} +1{rate} +\d+ s", rows[0]), text
    assert re.fullmatch(rf"crash points .*… +3/12{bar} +0{rate} +\d+ s +\d+ s", rows[1]), text
    assert re.search("first verdict after 9 s: PASS: .killed. at step 5", text.replace("\n", "")), text
    terminal.go_on()
    terminal.until(r"part 39 .*1/1")
    terminal.go_on()
    terminal.until("FAIL: 1 finding")
    code, left = terminal.end()
    assert code == 0
    assert re.fullmatch(r"first verdict after 9 s[^/━]*and more\s*FAIL: 1 finding", left), left


def test_what_ends_the_program_stands_below_what_is_left():
    terminal = Terminal(80, 24, "fails")
    terminal.until(r"3/12")
    terminal.go_on()
    terminal.until(r"part 39")
    terminal.go_on()
    code, left = terminal.end()
    assert code == 1
    assert re.fullmatch(r"first verdict [^/]*and more\s*harness: it was not to be", left), left
