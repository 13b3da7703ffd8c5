"""A full disk is no defect of the harness, and takes nothing with it that was found."""

from __future__ import annotations

import errno

import pytest

from harness.chaos.found import Found
from harness.chaos.journal import NAME, Journal
from harness.cli import main
from harness.cli.common import write
from harness.errors import UsageError
from harness.workers import Pool


def full(*_arguments, **_words):
    raise OSError(errno.ENOSPC, "No space left on device")


def ended(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code, *capsys.readouterr()


def test_a_full_disk_is_said_without_a_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("harness.chaos.night.run_night", full)
    code, _, err = ended(capsys, "chaos", "--reference", "single", "--budget", "1s", "--out", tmp_path / "runs")
    assert code == 4
    assert "(TMPDIR) is full (No space left on device)" in err
    assert "Traceback" not in err


def test_another_error_is_still_a_defect(tmp_path, monkeypatch, capsys):
    def broken(*_arguments, **_words):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("harness.chaos.night.run_night", broken)
    code, _, err = ended(capsys, "chaos", "--reference", "single", "--budget", "1s", "--out", tmp_path / "runs")
    assert (code, "Traceback" in err, "a defect of the harness" in err) == (4, True, True)


def test_what_a_night_has_found_is_printed_though_it_cannot_be_written(tmp_path, monkeypatch, capsys):
    def found(request, _bench, folder, *_more):
        (folder / "result.json").mkdir(parents=True)
        return Found(request, folder, notes=["this was found"], blocked="nothing could be tried")

    monkeypatch.setattr("harness.chaos.night.run_night", found)
    code, out, err = ended(capsys, "chaos", "--reference", "single", "--budget", "1s", "--out", tmp_path / "runs")
    assert code == 3  # the night's, as if it had been written
    assert "this was found" in out
    assert "what was found stands above" in err


def test_a_full_disk_under_a_process_of_the_harness_is_known_as_one():
    pool = Pool(print)
    pool.start("one", full)
    with pytest.raises(OSError, match="No space left") as raised:
        pool.wait(60.0)
    assert raised.value.errno == errno.ENOSPC


def test_a_night_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        Journal(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    Journal(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_no_part_of_a_result_is_left(tmp_path, monkeypatch):
    file = tmp_path / "page.html"

    def part(path, *_arguments, **_words):
        path.touch()
        full()

    monkeypatch.setattr("pathlib.Path.write_text", part)
    with pytest.raises(UsageError, match="No space left on device"):
        write(file, "<html>")
    assert not file.exists()
    file.touch()
    with pytest.raises(UsageError, match="No space left on device"):
        write(file, "<html>")
    assert file.exists()  # it is somebody's, perhaps /dev/stdout
