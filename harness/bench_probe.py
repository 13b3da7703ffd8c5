"""What watching a training process from inside costs a step, beside the same job unwatched.

Responsible for: a small job timed by itself, in three ways: unwatched; as an uninterrupted run is watched (every state before
every step); and as a restart is (states at saves and loads only).
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.launch.cold import ColdLaunch
from harness.plan import make_plan
from harness.scenario import Scenario
from harness.store import RunDirectory
from harness.supervisor import run_attempts

_STEPS = 400
_WARM_UP = 50
_ROUNDS = 3
# A model for which a millisecond is much: 2 layers, 33,000 parameters, AdamW.
_TRAINER = f"""
import statistics, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(32, 128)
times = []
for step in range({_STEPS + _WARM_UP}):
    begun = time.perf_counter()
    loss = model(data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(1000 * (time.perf_counter() - begun))
half = {_WARM_UP + _STEPS // 2}
print(statistics.median(times[{_WARM_UP}:half]), statistics.median(times[half:]))
"""


def probe_figures(folder: Path) -> dict[str, Any]:
    """Milliseconds per step that the probe adds, and how the cost grows.

    Args:
        folder: where the runs go; made.

    Returns:
        `unwatched_ms_per_step`; `probe_ms_per_step`, added in a restart; `probe_golden_ms_per_step`, added in an uninterrupted
        run; `probe_growth`, the second half of a restart's steps over the first.

    Raises:
        HarnessError: the job did not come to its end.
    """
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(_TRAINER)
    golden = folder / "golden"
    runs: dict[str, list[tuple[float, float]]] = {"unwatched": [], "golden": [], "restart": []}
    for number in range(_ROUNDS):  # in turn, since a machine drifts
        for how, times in runs.items():
            times.append(_timed(script, folder / f"{how}-{number}", how != "unwatched", golden if how == "restart" else None))
            if how == "golden" and not golden.exists():
                shutil.copytree(folder / f"{how}-{number}" / "attempt-000", golden)
                (golden / "baseline.json").write_text("{}")
    first, second = ({how: min(one[half] for one in times) for how, times in runs.items()} for half in (0, 1))
    both = {how: statistics.mean((first[how], second[how])) for how in runs}
    return {
        "unwatched_ms_per_step": both["unwatched"],
        "probe_ms_per_step": both["restart"] - both["unwatched"],
        "probe_golden_ms_per_step": both["golden"] - both["unwatched"],
        "probe_growth": second["restart"] / first["restart"],
    }


def _timed(script: Path, path: Path, probe: bool, golden: Path | None) -> tuple[float, float]:
    """Milliseconds of a step, in the first and in the second half of a run, as it has measured them itself."""
    workload = {"kind": "command", "command": ("{python}", str(script)), "probe": probe}
    plan = make_plan(Scenario.build({"name": path.name, "workload": workload, "world_sizes": (1,), "launch": "cold"}))
    directory = RunDirectory.create(path, plan)
    if golden is not None:
        shutil.copytree(golden, directory.golden)
    run_attempts(plan, directory, ColdLaunch())
    said = (directory.attempt(0) / "launcher.stdout").read_text().split()
    if len(said) != 2:
        raise HarnessError(f"the timed job did not come to its end: see {directory.attempt(0) / 'launcher.stderr'}")
    return float(said[0]), float(said[1])
