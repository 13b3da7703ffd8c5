"""Trainers without torch, for tests of what is done with replay files: they write the event log by themselves.

Not responsible for: what a real trainer does.
"""

from __future__ import annotations

import subprocess
import zipfile

from harness.plan import make_plan, write_plan
from harness.scenario import Scenario

TRAIN = """\
import json, os, sys, time
from pathlib import Path
from model import load, save, step

out = Path(sys.argv[1])


def say(event, **fields):
    line = json.dumps({"event": event, "rank": 0, "time_s": time.time(), **fields}) + "\\n"
    log = os.open(os.environ["HARNESS_EVENT_LOG"] + "/rank-0.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(log, line.encode())
    os.close(log)


say("start", world_size=1, pid=os.getpid(), python="", torch="", arguments=sys.argv[1:])
done, state = load(out)
say("resume", step=done, checkpoint="state.json" if done else None, skipped=[], world_size_saved=1)
for n in range(done + 1, 7):
    state, loss = step(state, n)
    say("batch", batch=n, step=n, epoch=0, batch_in_epoch=n, tag="STEP", loss=loss.hex(), global_loss=loss.hex())
    if n % 2 == 0:
        say("save", moment="begin", step=n, checkpoint="state.json")
        save(out, n, state)
        say("save", moment="end", step=n, checkpoint="state.json")
say("end", step=6, batches=6)
"""
MODEL = """\
import json


def load(out):
    file = out / "state.json"
    if not file.exists():
        return 0, {"weight": 1.0, "velocity": 0.0}
    saved = json.loads(file.read_text())
    return saved["step"], {"weight": saved["weight"], "velocity": saved["velocity"]}


def save(out, step, state):
    (out / "state.json.tmp").write_text(json.dumps({"step": step, **state}))
    (out / "state.json.tmp").rename(out / "state.json")


def step(state, n):
    velocity = 0.9 * state["velocity"] + state["weight"]
    weight = state["weight"] - 0.1 * velocity
    return {"weight": weight, "velocity": velocity}, weight * weight
"""
FORGETS_VELOCITY = MODEL.replace('saved["velocity"]}', "0.0}")
DOES_NOT_RUN = MODEL.replace("import json", "import jsonn")


def write_trainer(folder, model=MODEL, train=TRAIN):
    """Puts the trainer into a folder; a model of None is to be found elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(train)
    if model is not None:
        (folder / "model.py").write_text(model)
    return folder


def replay_file(file, directory, *, expected=None, command=("{python}", "train.py", "{ckpt}"), **settings):
    """A replay file that kills the trainer behind step 5, after the save of step 4."""
    workload = {"kind": "command", "command": command, "directory": str(directory), "steps": 6, "save_every": 2}
    scenario = {"workload": workload, "world_sizes": (1,), "launch": "cold", "name": "tiny"}
    plan = make_plan(Scenario.build({**scenario, "faults": ("sigkill rank 0 at step 5",), **settings}), expected=expected)
    write_plan(plan, file)
    return file


def git(folder, *words):
    """What git says."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def commit(folder, subject):
    """Commits everything and gives the commit's name."""
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


def wheel(folder, name, version, source):
    """A package of one module, as a wheel."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
