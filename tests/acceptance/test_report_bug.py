"""A failed run as a folder that can be given away: nothing in it says whose it is, and it shows the failure elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from tiny_trainers import FORGETS_VELOCITY, MODEL, TRAIN, replay_file, write_trainer

from harness.cli import main
from harness.plan import Expected, read_plan

# One file, as a person would cut it down; it says where it runs, and for whom, in its errors and in a file name.
ONE_FILE = TRAIN.replace("from model import load, save, step\n", FORGETS_VELOCITY.replace("import json\n", "")).replace(
    'say("resume"',
    "print(f\"{os.environ['USER']} on {os.uname().nodename} loads {out.resolve()} for {__file__}\", file=sys.stderr)\n"
    'say("resume"',
)


@pytest.fixture
def alice(tmp_path, monkeypatch):
    """A user whose name and home would be recognised."""
    home = tmp_path / "home" / "alicewonder"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "alicewonder")
    monkeypatch.setenv("LOGNAME", "alicewonder")
    monkeypatch.setenv("HOSTNAME", "wonderland-7")
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def harness(capfd):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in arguments])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def failed(alice, harness):
    """A run that has failed, of a script in one file."""
    project = write_trainer(alice / "project", None, ONE_FILE)
    command = ("{python}", str(project / "train.py"), "{ckpt}")
    code, out, _ = harness("replay", replay_file(alice / "plan.toml", project, command=command))
    assert code == 1, out
    return alice / "runs" / "tiny"


def everything(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_report_shows_the_failure_elsewhere_and_does_not_say_whose_it_is(harness, alice, failed, tmp_path):
    bug = alice / "bug"
    code, out, _ = harness("report-bug", failed, "--out", bug, "--with-script")
    assert code == 0, out
    files = everything(bug)
    assert {"issue.md", "replay.toml", "train.py", "verdict.json", "versions.json"} <= set(files)

    secrets = [str(alice), str(tmp_path), "alicewonder", "wonderland", "/tmp", "/home"]
    found = [(name, secret) for name, text in files.items() for secret in secrets if secret in text or secret in name]
    assert found == []
    host = re.compile(rf"(?<![^\W_]){re.escape(socket.gethostname())}(?![^\W_])", re.IGNORECASE)
    assert [name for name, text in files.items() if host.search(text)] == []
    # The line itself was kept: the test would see nothing if nothing had been said.
    assert "USER on HOST loads RUN/checkpoints for TRAINER/train.py" in files["log/attempt-001/rank-0.stderr"]

    # The first difference stands in the logs and in the issue, as it was found.
    losses = [batch_of(files[f"log/{part}/rank-0.jsonl"], 5)["global_loss"] for part in ("golden", "attempt-001")]
    assert losses[0] != losses[1]
    for loss in losses:
        assert repr(float.fromhex(loss)) in files["issue.md"]
    assert files["issue.md"].startswith("# diverged (none): loss differs at step 5, the first step after the resume")
    for text in ("sigkill rank 0 at step 5", "harness replay replay.toml", "| python | 3.", "| filesystem | "):
        assert text in files["issue.md"]
    verdict = json.loads(files["verdict.json"])
    assert (verdict["kind"], verdict["findings"][0]["step"]) == ("diverged", 5)
    assert {"harness", "python", "torch", "kernel", "filesystem"} <= set(json.loads(files["versions.json"]))
    # Batch 1 is far from where they part.
    assert batch_of(files["log/golden/rank-0.jsonl"], 1) is None

    given = tmp_path / "elsewhere" / "given"
    shutil.copytree(bug, given)
    shutil.rmtree(alice / "project")
    code, out, _ = harness("replay", given / "replay.toml", "--out", tmp_path / "again")
    assert code == 1, out
    assert out.splitlines()[-1] == "reproduced: expected diverged (none)"


def batch_of(text, number):
    records = [json.loads(line) for line in text.splitlines()]
    return next((record for record in records if record.get("batch") == number and record["event"] == "batch"), None)


def test_without_the_script_a_placeholder_stands_for_its_folder(harness, alice, failed, tmp_path):
    code, out, _ = harness("report-bug", failed)
    assert code == 0
    assert "put the trainer into the folder TRAINER beside replay.toml" in out
    bug = alice / "bug-tiny"
    plan = read_plan(bug / "replay.toml")
    assert plan.expected == Expected("diverged", "none")
    assert plan.scenario.workload.command == ("{python}", "train.py", "{ckpt}")
    assert plan.scenario.workload.directory == str(bug / "TRAINER")
    code, _, err = harness("replay", bug / "replay.toml", "--out", tmp_path / "again")
    assert code == 2
    assert f"the command's directory {bug / 'TRAINER'} does not exist" in err


def test_a_diagnosis_that_is_stored_is_given_away_too(harness, alice, failed):
    stored = json.loads((failed / "verdict.json").read_text())
    stored["diagnosis"] = {"cause": f"velocity is not loaded by {alice}/project/train.py", "next": ["load it"]}
    (failed / "verdict.json").write_text(json.dumps(stored))
    assert harness("report-bug", failed, "--out", alice / "bug")[0] == 0
    files = everything(alice / "bug")
    assert "- cause: velocity is not loaded by TRAINER/train.py\n- next: load it" in files["issue.md"]
    assert json.loads(files["verdict.json"])["diagnosis"]["cause"] == "velocity is not loaded by TRAINER/train.py"


def test_what_cannot_be_reported_is_said(harness, alice, failed):
    passed = write_trainer(alice / "healthy", MODEL)
    assert harness("replay", replay_file(alice / "healthy.toml", passed, name="healthy"))[0] == 0
    (alice / "full").mkdir()
    (alice / "full" / "file").touch()
    never = shutil.copytree(failed, alice / "runs" / "never")
    for attempt in never.glob("attempt-*"):
        shutil.rmtree(attempt)
    cut = shutil.copytree(failed, alice / "runs" / "cut")
    log = cut / "attempt-001" / "attempt.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"ended"' not in line))
    bare = shutil.copytree(failed, alice / "runs" / "bare")
    shutil.rmtree(bare / "golden")
    cases = [
        ((alice / "runs" / "healthy",), "has passed, so there is nothing to report"),
        ((alice / "nowhere",), "is no run directory"),
        ((alice / "full",), "cannot read the replay file"),
        ((never,), "is not complete: no attempt was launched"),
        ((cut,), "is not complete: its last attempt has no end"),
        ((bare,), "is not complete: cannot read the baseline"),
        ((failed, "--out", alice / "full"), "is not empty; expected a new folder"),
        ((failed, "--out", "/proc/bug"), "cannot write to /proc/bug"),
    ]
    for words, expected in cases:
        code, _, err = harness("report-bug", *words)
        assert code == 2, words
        assert expected in err


def test_a_script_that_cannot_be_given_away_is_said(harness, alice, failed):
    script = alice / "project" / "train.py"
    text = script.read_text()
    (alice / "project" / "helper.py").touch()
    for changed, expected in (
        (f"import helper\n{text}", "imports helper from beside it; expected a single file"),
        (f"{text}# {'x' * 70_000}\n", "bytes; expected at most 65536"),
        ("def", "is no Python source"),
        (None, "does not exist"),
    ):
        script.unlink() if changed is None else script.write_text(changed)
        code, _, err = harness("report-bug", failed, "--with-script", "--out", alice / "bug")
        assert code == 2
        assert expected in err
    assert not (alice / "bug").exists()


def test_the_type_of_the_file_system(tmp_path):
    from harness.bug_report import filesystem_of

    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:3 / /a\\040b rw shared:1 - tmpfs tmpfs rw\n"
        "3 1 0:4 / /a\\040b/c rw - xfs /dev/sdb rw\n"
        "broken\n"
    )
    found = {path: filesystem_of(Path(path), mounts) for path in ("/x", "/a b", "/a b/d", "/a b/cd", "/a b/c/d")}
    assert found == {"/x": "ext4", "/a b": "tmpfs", "/a b/d": "tmpfs", "/a b/cd": "tmpfs", "/a b/c/d": "xfs"}
    assert filesystem_of(Path("/x"), tmp_path / "absent") == "unknown"
    assert filesystem_of(Path(os.sep)) != "unknown"
