"""`harness check -- COMMAND` on a tiny trainer that does what real ones do, and on commands that cannot be checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DEADLINE_S = 400
TRAINER = """
import hashlib, io, os, signal, sys
import torch
out, words = sys.argv[1], sys.argv[2:]
if "elsewhere" in words: os.makedirs(out := "elsewhere", exist_ok=True)
if "fail" in words: sys.exit("cannot read the data set")
if "seedless" not in words: torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled="scaled" in words, init_scale=1024.0)
data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
def save(step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "step": step}
    state["rng"] = torch.get_rng_state()
    path = os.path.join(out, "ckpt.pt")
    if "log" in words:
        torch.save(state, whole := io.BytesIO())
        with open(os.path.join(out, "ckpt.log"), "ab") as file:
            file.write(len(whole.getvalue()).to_bytes(8, "little") + hashlib.sha256(whole.getvalue()).digest() + whole.getvalue())
            file.flush()
            if "unsynced" not in words: os.fsync(file.fileno())
        if step == 3:
            folder = os.open(out, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        return
    if "trusts" in words and os.path.exists(path + ".tmp"):
        os.replace(path + ".tmp", path)
        return
    with open(path + ".tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    folder = os.open(out, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
def last_record():
    path, found, end = os.path.join(out, "ckpt.log"), None, 0
    if not os.path.exists(path): return None
    with open(path, "r+b") as file:
        while len(head := file.read(40)) == 40:
            body = file.read(int.from_bytes(head[:8], "little"))
            if hashlib.sha256(body).digest() != head[8:]: break
            found, end = body, file.tell()
        file.truncate(end)
    return None if found is None else torch.load(io.BytesIO(found), weights_only=True)
step = 0
state = last_record() if "log" in words else None
if os.path.exists(os.path.join(out, "ckpt.pt")) and "anew" not in words:
    state = torch.load(os.path.join(out, "ckpt.pt"), weights_only=True)
if state is not None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    step = state["step"]
    if "no-rng" not in words: torch.set_rng_state(state["rng"])
while step < 10 and "idle" not in words:
    x = data[step * 3:step * 3 + 3]
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    step += 1
    while "slow" in words: signal.pause()
    if asked:
        save(step)
        sys.exit(0)
    if step % 3 == 0 and "never-saves" not in words: save(step)
"""
QUICK = ("--power-cut", "none", "--no-recovery", "--crash-points", "2", "--budget", "20m")


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Runs `harness check` on the trainer with these words; options come before them."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "train.py").write_text(TRAINER)

    def run(*words, options=QUICK):
        trainer = [sys.executable, "train.py", "{ckpt}", *words]
        command = [sys.executable, "-m", "harness.cli", "check", *options, "--", *trainer]
        return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    run.folder = folder
    return run


def test_a_trainer_that_saves_when_it_is_asked_to_end_passes(check):
    files = ("--json", "found.json", "--junit", "found.xml", "--summary", "found.md")
    folder, done = check("scaled", options=(*QUICK, *files))
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("control", "kill between two saves", "SIGTERM", "SIGTERM twice", "a second interruption", "errors of the disk"):
        assert f"PASS         {part}: " in done.stdout
    assert "PASS         an overflow batch: 1 of 1 case held" in done.stdout
    assert "PASS         damage at rest: 2 of 2 cases held" in done.stdout
    assert "other numbers of ranks: the command has no {world_size}" in done.stdout
    found = json.loads((folder / "found.json").read_text())
    assert found["summary"]["fail"] == found["summary"]["inconclusive"] == 0
    assert found["left_out"]
    # Told as soon as there is one, and not at the end.
    first, after = done.stderr.index("first verdict after"), done.stderr.index("recording the job")
    assert re.match(r"first verdict after \d+ s: PASS: ", done.stderr[first:])
    assert first < after
    suite = ET.parse(folder / "found.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")
    assert int(suite.get("tests")) > 10
    assert (folder / "found.md").read_text().startswith("## harness check: ✅ PASS")


def test_a_broken_resume_is_one_finding_that_can_be_repeated(check):
    folder, done = check("no-rng")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1. diverged (rng.torch): " in done.stdout
    assert "\n2. " not in done.stdout
    replay = done.stdout.partition("repeat: harness replay ")[2].splitlines()[0]
    command = [sys.executable, "-m", "harness.cli", "replay", replay]
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert again.returncode == 1
    assert again.stdout.startswith("FAIL diverged")


def test_a_checkpoint_that_is_appended_to_one_file_is_not_lost_by_the_next_one(check):
    _, done = check("log", options=("--budget", "20m"))
    assert done.returncode == 0, done.stdout + done.stderr
    # It is made in memory, and written to a file of any name.
    assert "PASS         a second interruption: 2 of 2 cases held" in done.stdout


def test_an_appended_checkpoint_that_is_not_synced_is_found(check):
    _, done = check("log", "unsynced", options=("--budget", "20m", "--no-recovery"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1. last-good-lost (checkpoint-files): a power cut" in done.stdout
    assert "takes the content of ckpt.log by rank 0 (no fsync of the file)" in done.stdout
    assert "\n2. " not in done.stdout


def test_a_torn_leftover_that_the_next_save_commits_is_found(check):
    # Nobody reads that checkpoint as long as the job goes on: it takes one more restart.
    _, done = check("trusts", options=("--power-cut", "none", "--no-recovery", "--budget", "20m"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1. corrupt-accepted (checkpoint-files): rank 0's open of ckpt.pt.tmp comes before" in done.stdout
    assert "rank 0's last write of ckpt.pt.tmp" in done.stdout
    assert "ckpt.pt holds what the attempt before had left of it as ckpt.pt.tmp: " in done.stdout
    assert "\n2. " not in done.stdout
    assert "-resaved/plan.toml" in done.stdout


@pytest.mark.parametrize(
    ("word", "code", "texts"),
    [
        ("fail", 2, ["it ended with exit code 1", "cannot read the data set"]),
        ("idle", 2, ["no training step of it was seen", "it printed nothing"]),
        ("seedless", 3, ["the job is not deterministic", "batch at step 1"]),
        ("anew", 3, ["the job never resumed", "--resume-command"]),
        ("never-saves", 3, ["the job never saved", "{ckpt}"]),
        ("elsewhere", 3, ["neither wrote below its checkpoint directory", "pass {ckpt} to it"]),
    ],
)
def test_what_cannot_be_checked_is_said_once_with_what_to_do(check, word, code, texts):
    _, done = check(word)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert [text for text in texts if text not in said] == []
    assert "FAIL" not in said
    assert "Traceback" not in said


def test_an_interpreter_that_keeps_watchers_out_is_named(check):
    command = [sys.executable, "-m", "harness.cli", "check", "--", sys.executable, "-I", "train.py", "{ckpt}"]
    done = subprocess.run(command, cwd=check.folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "its interpreter is started with -I, which keeps out whoever watches it" in done.stderr
    assert "--loss-log FILE" in done.stderr


def test_the_resume_command_is_what_restarts(check):
    resume = f"{sys.executable} train.py {{ckpt}}"
    _, done = check("anew", options=(*QUICK, "--resume-command", resume))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_budget_in_which_not_even_the_control_runs_is_said(check):
    _, done = check(options=("--budget", "0.01s"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the budget was used up before the control had run" in done.stdout


# What ends the processes and tells the findings, on a machine that does many other things as well.
SLACK_S = 60
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@pytest.mark.parametrize("slow", [True, False])
def test_a_check_ends_within_its_budget_and_says_what_it_left_out(check, slow):
    folder, budget_s = check.folder, 4 if slow else 25
    ranks = [TORCHRUN, "--nproc-per-node", "{world_size}", str(Path(__file__).parent / "probed" / "ranks.py"), "ddp", "--out"]
    trainer = [sys.executable, "train.py", "{ckpt}", "slow"] if slow else [*ranks, "{ckpt}"]
    command = [sys.executable, "-m", "harness.cli", "check", "--budget", f"{budget_s}s", "--out", f"runs-{slow}", "--", *trainer]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    took_s = time.monotonic() - began
    assert took_s < budget_s + SLACK_S, done.stdout
    assert done.returncode in ((3,) if slow else (0, 1, 3)), done.stdout + done.stderr
    used_up = "the budget was used up before the control had run (--budget): the uninterrupted runs" in done.stdout
    too_short = "no case would have ended within the budget" in done.stdout
    assert used_up or too_short or (not slow and "\nleft out:\n" in done.stdout), done.stdout
    assert "Traceback" not in done.stderr
