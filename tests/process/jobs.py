"""Small jobs without torch, run by the real supervisor behind the real gate."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.launch.cold import ColdLaunch
from harness.plan import make_plan
from harness.scenario import Scenario
from harness.store import Run, RunDirectory, read_run
from harness.supervisor import run_attempts

PRELUDE = """
import errno, json, os, sys, time
ckpt = sys.argv[1]
log = os.path.join(os.environ["HARNESS_EVENT_LOG"], "rank-0.jsonl")
def say(event, **fields):
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, (json.dumps({"event": event, "rank": 0, **fields}) + "\\n").encode())
    os.close(fd)
def attempt(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
os.chdir(ckpt)
"""


def run_job(path: Path, program: str, *faults: str, **settings) -> Run:
    """Runs a Python program as a job of one process; `ckpt` is its checkpoint directory and its working directory."""
    scenario = Scenario.build(
        {
            "workload": {"kind": "command", "command": (sys.executable, "-c", PRELUDE + program, "{ckpt}")},
            "world_sizes": (1,),
            "faults": faults,
            "launch": "cold",
            "max_attempts": 1,
            "deadline_s": 60.0,
            **settings,
        }
    )
    plan = make_plan(scenario)
    directory = RunDirectory.create(path / "run", plan)
    run_attempts(plan, directory, ColdLaunch())
    return read_run(directory.path)


def said(run: Run) -> list:
    """The values that the program passed to `say("value", value=...)`, in order."""
    return [record["value"] for record in run.attempts[0].ranks[0].of("value")]


def kept(run: Run, name: str) -> bytes | None:
    """The content of a file of the checkpoint directory after the run; None if it is not there."""
    path = run.directory.checkpoints / name
    return path.read_bytes() if path.is_file() else None


def ending(run: Run) -> tuple[str, int | None, str | None]:
    """How the job ended: kind, code, signal."""
    end = run.attempts[0].exits[-1]
    return end["kind"], end["code"], end["signal"]
