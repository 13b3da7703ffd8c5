"""A training job without torch that resumes exactly, and eleven ways in which it does not once two things have gone wrong.

`python trainer.py CKPT [BUG]`: 14 steps, a checkpoint after every third (whatever it resumes from, a step follows), of which the
last two are kept. It writes the event log (docs/event-log.md) by itself. Without a BUG it survives whatever `harness chaos` does;
with one it survives any single fault.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import sys
import time

STEPS, SAVE_EVERY, KEEP = 14, 3, 2
ROOT = sys.argv[1]
BUG = sys.argv[2] if len(sys.argv) > 2 else ""


def say(event, **fields):
    folder = os.environ.get("HARNESS_EVENT_LOG")
    if not folder:
        return
    line = json.dumps({"event": event, "rank": 0, "time_s": time.time(), **fields}) + "\n"
    descriptor = os.open(f"{folder}/rank-0.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


class RefusedError(Exception):
    pass


class Job:
    def __init__(self):
        self.rng = random.Random(7)
        self.weight, self.momentum, self.step = 4.0, 0.0, 0
        self.scale, self.warm = 16.0, 0  # grows while it trains; steps of the warm-up that are done
        self.resumed_from = None  # the state as it was loaded
        self.resumes = 0  # of this job, as far as its checkpoints know
        self.leave_out = 0

    def state(self):
        version, numbers, gauss = self.rng.getstate()
        return {
            "step": self.step,
            "weight": self.weight,
            "momentum": self.momentum,
            "scale": self.scale,
            "warm": self.warm,
            "rng": [version, list(numbers), gauss],
            "resumes": self.resumes,
        }

    def restore(self, state):
        self.step, self.weight, self.momentum = state["step"], state["weight"], state["momentum"]
        self.scale = state.get("scale", 16.0)
        self.warm = state["warm"]
        version, numbers, gauss = state["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))
        self.resumes = state["resumes"] + 1
        self.resumed_from = state
        if BUG == "warm-up-again" and self.resumes > 1:
            self.warm = 0

    def digests(self):
        state = self.state()
        parts = {"model": "weight", "optimizer": "momentum", "scaler": "scale", "scheduler": "warm", "rng.python": "rng"}
        return {name: hashlib.sha256(json.dumps(state[key]).encode()).hexdigest()[:16] for name, key in parts.items()}

    def train(self):
        sample = self.step
        noise = self.rng.random()
        if self.leave_out:
            self.leave_out, sample = 0, sample + 1
        gradient = (self.weight - sample / 10) * (0.5 + noise) * self.scale / 16
        loss = gradient * gradient
        rate = 0.02 * min(1.0, (self.warm + 1) / 8)
        self.momentum = 0.9 * self.momentum + gradient
        self.weight -= rate * self.momentum
        self.scale *= 1.03
        self.warm += 1
        self.step += 1
        where = {"batch": self.step, "step": self.step, "epoch": 0, "batch_in_epoch": self.step, "tag": "STEP"}
        say("batch", **where, loss=loss.hex(), global_loss=loss.hex(), samples=[sample])


# -- files


def path(name):
    return os.path.join(ROOT, name)


def sync_folder():
    descriptor = os.open(ROOT, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_through(name, text, mode="wb"):
    with open(path(name), mode) as file:
        half = len(text) // 2
        file.write(text[:half])
        file.flush()
        file.write(text[half:])
        file.flush()
        os.fsync(file.fileno())


def put(name, text, temporary=""):
    temporary = temporary or name + ".tmp"
    write_through(temporary, text.encode(), "ab" if BUG == "tmp-appended" else "wb")
    os.replace(path(temporary), path(name))
    sync_folder()


def remove(name):
    if os.path.lexists(path(name)):
        os.unlink(path(name))
        sync_folder()


def read_checkpoint(name):
    """The state of a checkpoint; ValueError where it is not what was written."""
    with open(path(name), "rb") as file:
        digest, _, body = file.read().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("sha256 differs")
    state = json.loads(body)
    if state["step"] != number(name):
        raise ValueError(f"holds step {state['step']}, expected {number(name)}")
    return state


def number(name):
    return int(re.findall(r"\d+", name)[0])


def checkpoints():
    """Newest first."""
    pattern = r"ckpt-\d+(\.json|\.old)" if BUG == "quarantine-scanned" else r"ckpt-\d+\.json"
    names = [name for name in os.listdir(ROOT) if re.fullmatch(pattern, name)]
    return sorted(names, key=lambda name: (number(name), name), reverse=True)


# -- saving


def save(job, emergency=False):
    name = f"ckpt-{job.step:03d}.json"
    say("state", moment="save", step=job.step, digests=job.digests())
    say("save", moment="begin", step=job.step, checkpoint=name)
    state = job.state()
    if BUG == "rng-stale" and job.resumed_from:
        state["rng"] = job.resumed_from["rng"]
    if BUG == "scale-not-saved-again" and job.resumed_from:
        del state["scale"]
    if BUG == "emergency-stale" and emergency and job.resumed_from:
        state["momentum"] = job.resumed_from["momentum"]
    body = json.dumps(state)
    if BUG == "lock-left":
        write_through("lock", b"held\n")
    try:
        # One name for all, of which each save begins with an empty file.
        put(name, hashlib.sha256(body.encode()).hexdigest() + "\n" + body, "next.tmp")
    except OSError as error:
        say("save", moment="failed", step=job.step, checkpoint=name, error=str(error))
        raise
    if BUG == "lock-left":
        remove("lock")
    if BUG == "fallback-pinned" and not os.path.exists(path("fell-back")):
        put("newest", name)
    for old in checkpoints()[KEEP:]:
        remove(old)
    say("save", moment="end", step=job.step, checkpoint=name)


# -- starting


def tidy(left):
    """What is half is removed; some bugs do something else with it."""
    if BUG not in ("tmp-appended", "quarantine-scanned"):
        for name in left:
            remove(name)
    if BUG == "lock-left" and os.path.exists(path("lock")):
        if os.path.exists(path("lock.broken")):
            raise RuntimeError("the lock was broken before: another job runs here")
        os.replace(path("lock"), path("lock.broken"))


def candidates():
    """The checkpoints to try, the best first."""
    names = checkpoints()
    if BUG == "fallback-pinned" and os.path.exists(path("fell-back")):
        with open(path("newest")) as file:
            pinned = file.read()
        names.sort(key=lambda name: name != pinned)
    return names


def newer_than(name):
    """What is passed over for a pinned checkpoint is named, or it would be seen after one fault less."""
    return [{"path": other, "reason": "not the pinned one"} for other in checkpoints() if number(other) > number(name)]


def recover(job):
    """What a start makes of what it finds: the newest good checkpoint, and nothing half."""
    left = sorted(name for name in os.listdir(ROOT) if name.endswith(".tmp"))
    tidy(left)
    skipped = []
    for name in candidates():
        if name.endswith(".old"):
            return None, [{"path": other, "reason": "put away by an earlier start, or older"} for other in candidates()]
        try:
            job.restore(read_checkpoint(name))
        except (ValueError, OSError) as error:
            skipped.append({"path": name, "reason": str(error)})
            continue
        if BUG == "fallback-pinned":
            skipped = skipped or newer_than(name)
        if BUG == "fallback-pinned" and skipped and not os.path.exists(path("fell-back")):
            put("newest", name)
            put("fell-back", "yes")
        if BUG == "recovery-removes" and left and len(checkpoints()) == 1:
            remove(name)  # were there others, what is left in the end would show it after a single fault
        if BUG == "quarantine-scanned" and left:
            os.replace(path(left[0]), path(f"ckpt-{number(name) + SAVE_EVERY:03d}.old"))
        return name, skipped
    if skipped:
        raise RefusedError(
            f"no good checkpoint: {skipped[0]['path']}: expected its sha256, found another ({skipped[0]['reason']})"
        )
    return None, skipped


def count_restart(job, name):
    """Counts the starts from one checkpoint, or all restarts, in a file of its own."""
    if BUG == "crash-loop-skips":
        found = {"from": None, "times": 0}
        if os.path.exists(path("starts")):
            with open(path("starts")) as file:
                found = json.load(file)
        times = found["times"] + 1 if name and found["from"] == name else 1
        put("starts", json.dumps({"from": name, "times": times}))
        job.leave_out = times > 1
    if BUG == "restarts-torn" and name:
        count = 0
        if os.path.exists(path("restarts")):
            with open(path("restarts")) as file:
                count = int(file.read())
        write_through("restarts", f"{count + 1:08d}".encode())


def main():
    say("start", world_size=1, pid=os.getpid())
    job = Job()
    try:
        name, skipped = recover(job)
    except RefusedError as error:
        say("refuse", error=str(error))
        print(error, file=sys.stderr)
        return 3
    count_restart(job, name)
    say("resume", step=job.step, checkpoint=name, skipped=skipped, world_size_saved=1 if name else None)
    if name:
        say("state", moment="load", step=job.step, digests=job.digests())
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    while job.step < STEPS:
        job.train()
        if asked and job.step < STEPS:  # a job that is done need not be asked
            save(job, emergency=True)
            return 143
        if job.step % SAVE_EVERY == 0:
            save(job)
    say("state", moment="end", step=job.step, digests=job.digests())
    say("end", step=job.step, batches=job.step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
