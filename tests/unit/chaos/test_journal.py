"""The state of a night on disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from harness.chaos import journal
from harness.chaos.journal import Journal, find_unfinished, read
from harness.errors import CapabilityError, UsageError


def begun(folder, **more):
    folder.mkdir(exist_ok=True)
    night = Journal(folder, **more)
    night.write("night", schema=journal.SCHEMA, request={})
    return night


def test_what_is_written_is_read_back(tmp_path):
    night = begun(tmp_path, used_s=5.0)
    night.write("drawn", number=1)
    night.close()
    entries, bad = read(tmp_path / journal.NAME)
    assert [entry["event"] for entry in entries] == ["night", "drawn"]
    assert (entries[-1]["at_s"] >= 5.0, bad) == (True, 0)
    assert os.listdir(tmp_path) == [journal.NAME]


def test_a_night_that_was_killed_within_a_line_goes_on(tmp_path):
    begun(tmp_path).close()
    with (tmp_path / journal.NAME).open("a") as file:
        file.write('{"event": "fini')
    night = Journal(tmp_path)
    night.write("drawn", number=1)
    night.close()
    entries, bad = read(tmp_path / journal.NAME)
    assert [entry["event"] for entry in entries] == ["night", "drawn"]
    assert bad == 1


def test_the_newest_that_has_not_ended_is_found(tmp_path):
    for name in ("one", "two", "three"):
        night = begun(tmp_path / name)
        if name == "three":
            night.write("ended", exit=0)
        night.close()
        os.utime(tmp_path / name / journal.NAME, ns=(1, {"one": 1, "two": 2, "three": 3}[name] * 10**9))
    assert find_unfinished(tmp_path).folder == tmp_path / "two"
    with pytest.raises(UsageError, match="has come to its end"):
        find_unfinished(tmp_path / "three")


def test_a_night_that_is_running_is_not_gone_on_with(tmp_path):
    for name in ("killed", "running"):
        begun(tmp_path / name).close()
        os.utime(tmp_path / name / journal.NAME, ns=(1, {"killed": 1, "running": 2}[name] * 10**9))
    line = "import sys; from pathlib import Path; from harness.chaos.journal import Journal\n"
    line += "night = Journal(Path(sys.argv[1])); print('there', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", line, str(tmp_path / "running")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"there\n"
        assert find_unfinished(tmp_path).folder == tmp_path / "killed"
        with pytest.raises(UsageError, match="still running, in another process"):
            find_unfinished(tmp_path / "running")
        with pytest.raises(UsageError, match="still running, in another process"):
            Journal(tmp_path / "running")
        other.kill()
    assert find_unfinished(tmp_path / "running").folder == tmp_path / "running"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no line that can be read"),
        ('{"event": "night", "schema": "harness.night/9"}\n', "'harness.night/9'"),
        ("{", "no line"),
    ],
)
def test_no_journal_of_this_version_is_wrong_usage(tmp_path, text, word):
    (tmp_path / journal.NAME).write_text(text)
    with pytest.raises(UsageError, match=word):
        find_unfinished(tmp_path)
    with pytest.raises(UsageError, match="no night below"):
        find_unfinished(tmp_path / "elsewhere")


def test_on_a_full_disk_the_reserve_takes_the_last_line(tmp_path, monkeypatch):
    night = begun(tmp_path)
    real, full = os.write, [True]

    def write(fd, data):
        if full[0]:
            full[0] = False
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    night.write("drawn", number=1)
    assert not (tmp_path / ".reserve").exists()
    monkeypatch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(CapabilityError, match=r"Nothing that was found is lost.*--continue"):
        night.write("drawn", number=2)
    monkeypatch.undo()
    assert [entry["event"] for entry in read(tmp_path / journal.NAME)[0]] == ["night", "drawn"]
