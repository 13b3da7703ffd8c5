"""Judging is quick and light: a run of 1,000 steps on 8 ranks, with its diagnosis, in a process that has never seen torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stored import stored_run

ROOT = Path(__file__).parents[2]
LIMIT_S = 2.0
# Time of the processor and not of the clock, so that a busy machine does not make it longer.
PROGRAM = """
import json, sys, time
from pathlib import Path
began = time.process_time()
from harness.case import judge_again
verdict = judge_again(Path(sys.argv[1]))
took_s = time.process_time() - began
diagnosis = verdict.diagnosis.to_json() if verdict.diagnosis else None
print(json.dumps([took_s, verdict.outcome, verdict.kind, diagnosis, "torch" in sys.modules, "numpy" in sys.modules]))
"""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return stored_run(tmp_path_factory.mktemp("long") / "run", steps=1000, ranks=8, save_every=50, killed=540)


def judged(run: Path) -> list:
    words = [sys.executable, "-c", PROGRAM, str(run)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300, check=True)
    return json.loads(done.stdout)


def test_a_long_run_that_passes_is_judged_in_two_seconds_without_torch(long_run):
    took_s, outcome, kind, diagnosis, torch, numpy = judged(long_run)
    assert (outcome, kind, diagnosis, torch, numpy) == ("PASS", None, None, False, False)
    assert took_s < LIMIT_S


def test_a_long_run_that_fails_is_diagnosed_in_two_seconds_without_torch(long_run, tmp_path):
    changed = shutil.copytree(long_run, tmp_path / "run")
    attempt = changed / "attempt-001"
    for rank in range(8):
        file = attempt / f"rank-{rank}.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            if record["event"] == "batch":
                # Two batches again, at another learning rate, with another loss: every family of patterns has work to do.
                record["samples"] = [(record["batch"] - 2) * 12 + rank]
                record["learning_rate"] = (0.001).hex()
                record["loss"] = record["global_loss"] = (2.0 + record["batch"] / 7).hex()
            elif record["event"] == "state":
                record["digests"]["optimizer"] = "other"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    supervisor = [json.loads(line) for line in (attempt / "attempt.jsonl").read_text().splitlines()]
    (attempt / "attempt.jsonl").unlink()
    from stored import write_supervisor

    write_supervisor(attempt, supervisor)
    took_s, outcome, kind, diagnosis, torch, _ = judged(changed)
    assert (outcome, kind, torch) == ("FAIL", "data-repeated", False)
    assert "batch-repeated" in [pattern["name"] for pattern in diagnosis["patterns"]]
    assert took_s < LIMIT_S
