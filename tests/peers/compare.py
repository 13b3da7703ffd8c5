"""This harness beside ckpt-chaos, the nearest tool, on the same scripts: `python tests/peers/compare.py`.

Prints one table: crash points that were tried, distinct defects that were named, verdicts per minute. Both must be installed in
the interpreter that runs this (`pip install ckpt-chaos`, and the extra `trainers`). It takes some minutes; CI does not run it.

What is counted: for ckpt-chaos, one verdict per kill point and mode that its `run` prints, and as a defect each different verdict
that is no PASS (it names no causes). For the harness, one verdict per crash state that was judged, and as a defect each finding.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHAPES = {
    "overwritten in place": [str(HERE / "shapes" / "overwrite.py"), "--out"],
    "temporary file, rename": [str(HERE / "shapes" / "overwrite.py"), "--atomic", "--out"],
    "Hugging Face Trainer": [str(HERE.parents[1] / "scenarios" / "trainers" / "scripts" / "hf_trainer.py"), "--out"],
}
TIMEOUT_S = 1800


def run(words, folder):
    """The seconds that a command takes, and what it prints. Raises: RuntimeError if it neither passes nor finds something."""
    began = time.monotonic()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode not in (0, 1, 3):
        said = done.stderr[-2000:] + done.stdout[-500:]
        raise RuntimeError(f"{' '.join(words)} ended with exit code {done.returncode}:\n{said}")
    return time.monotonic() - began, done.stdout


def peer(script, folder):
    """Points, verdicts, defects and seconds of ckpt-chaos."""
    options = ["--work", str(folder / "work"), "--step-regex", r"resumed from step (\d+)"]
    seconds, _ = run([sys.executable, "-m", "ckpt_chaos", "run", *options, "--", sys.executable, *script, "{out}"], folder)
    results = [json.loads(path.read_text()) for path in (folder / "work").glob("pt_*/result.json")]
    judged = run([sys.executable, "-m", "ckpt_chaos", "judge", str(folder / "work")], folder)[1]
    words = collections.Counter(word for line in judged.splitlines() for word in line.split()[-1:] if word.isupper())
    return len(results), len(results), sorted(set(words) - {"PASS"}), seconds


def ours(script, folder):
    """The same of `harness check` with all crash points and modelled power cuts."""
    out = folder / "result.json"
    options = ["--crash-points", "60", "--no-recovery", "--json", str(out), "--out", str(folder / "runs")]
    harness = [sys.executable, "-m", "harness.cli", "check", *options]
    seconds, _ = run([*harness, "--", sys.executable, *script, "{ckpt}"], folder)
    found = json.loads(out.read_text())
    parts = [part for part in found["coverage"] if "crash_points" in part]
    causes = [f"{finding['kind']}: {finding['text'][:100]}" for finding in found["findings"]]
    judged = sum(part["judged"] for part in parts)
    return sum(part["crash_points"] for part in parts), judged, causes, seconds


def main():
    if importlib.util.find_spec("ckpt_chaos") is None:
        sys.exit(f"ckpt-chaos is not installed for {sys.executable}: there is nothing to compare with. pip install ckpt-chaos")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    print(f"{'script':<24} {'tool':<12} {'crash points':>12} {'verdicts':>9} {'defects':>8} {'verdicts/min':>13}")
    named = []
    for label, script in SHAPES.items():
        for tool, measure in (("ckpt-chaos", peer), ("harness", ours)):
            with tempfile.TemporaryDirectory() as folder:
                points, verdicts, defects, seconds = measure(script, Path(folder))
            rate = 60 * verdicts / seconds
            print(f"{label:<24} {tool:<12} {points:>12} {verdicts:>9} {len(defects):>8} {rate:>13.1f}", flush=True)
            named += [f"{label}, {tool}: {defect}" for defect in defects]
    print("\n".join(named))


if __name__ == "__main__":
    main()
