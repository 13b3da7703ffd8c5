"""What exploring costs, beside killing and running the same job again through torchrun; and what a trace's data costs.

Responsible for: these figures of `harness bench`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import baseline
from harness.case import Workbench, run_case
from harness.check_request import REFERENCE
from harness.errors import HarnessError
from harness.explore import Exploration, explore, record, record_runs
from harness.scenario import Scenario, job

_TRACED_MB = 256
_WRITER = """\
import os, sys, time
data = os.urandom(1 << 24)
start = time.perf_counter()
with open(sys.argv[1] + "/data", "wb", buffering=0) as file:
    for number in range(int(sys.argv[2]) // 16):
        file.write(number.to_bytes(8, "big") + data[8:])
print(time.perf_counter() - start)
"""


def explored_job(launch: str = "warm") -> Scenario:
    """The job that `harness check --reference sharded` explores."""
    return job("sharded", ranks=2, launch=launch, name=f"bench-explored-{launch}", **dict[str, Any](REFERENCE))


def exploration_figures(bench: Workbench, folder: Path, limit: int | None, num_reruns: int) -> dict[str, Any]:
    """Explores one save of two ranks, and repeats some of its states through torchrun from the start.

    Args:
        bench: where cases run.
        folder: for the recordings and the run directories.
        limit: so many distinct states only; None for all.
        num_reruns: states to repeat.

    Returns:
        `states` (all crash states), `states_distinct`, `states_s` (seconds for all of them, without the recording),
        `states_per_min` (distinct ones), `rerun_s`, `states_over_rerun`.

    Raises:
        HarnessError: a state of the healthy trainer did not pass, so its time means nothing.
    """
    scenario = explored_job()
    recordings = record(scenario, bench, folder / "recordings")
    window = recordings.recorded.trace.saves()[1]
    found = explore(recordings, window, bench, folder / "states", jobs=len(os.sched_getaffinity(0)) + 1, limit=limit)
    if found.outcome != "PASS":
        raise HarnessError(f"an explored state of the healthy trainer did not pass; see {folder / 'states'}")
    rerun_s = _rerun_seconds(bench, found, num_reruns)
    per_min = 60 * len(found.judged) / found.exploring_s
    return {
        "states": len(found.enumeration.states),
        "states_distinct": len(found.judged),
        "states_s": found.exploring_s,
        "states_per_min": per_min,
        "rerun_s": rerun_s,
        "states_over_rerun": per_min * rerun_s / 60,
    }


def _rerun_seconds(bench: Workbench, found: Exploration, number: int) -> float:
    """Median seconds of the same crash, made by killing the job under torchrun and starting it again."""
    scenario = explored_job("torchrun")
    baseline.obtain(scenario, bench.baselines, bench.launcher(baseline.golden_scenario(scenario)))
    states = [judged.state for judged in found.judged if judged.state.natural and judged.state.survivors is None]
    times = []
    for place in range(number):
        state = states[(place + 1) * len(states) // (number + 1)]
        started = time.perf_counter()
        verdict, directory = run_case(scenario.model_copy(update={"faults": state.faults}), bench)
        times.append(time.perf_counter() - started)
        if verdict.outcome != "PASS":
            raise HarnessError(f"the crash that is repeated through torchrun did not pass: see `harness judge {directory.path}`")
    return statistics.median(times)


def trace_figures(bench: Workbench, folder: Path) -> dict[str, Any]:
    """Seconds for a GB of writes, plain and traced with all data kept: `plain_gb_s`, `trace_gb_s`."""
    folder.mkdir(parents=True)
    script = folder / "writer.py"
    script.write_text(_WRITER)
    words = (sys.executable, "-S", str(script), "{ckpt}", str(_TRACED_MB))
    data = {"name": "bench-trace", "workload": {"kind": "command", "command": words}, "world_sizes": (1,), "launch": "cold"}
    recordings = record_runs(Scenario.build(data), bench, folder / "runs", once=True)
    traced = float((recordings.recorded.folder / "launcher.stdout").read_text())
    plain = subprocess.run([*words[:3], str(folder), words[4]], capture_output=True, text=True, check=True, timeout=300)
    scale = 1024 / _TRACED_MB
    return {"plain_gb_s": scale * float(plain.stdout), "trace_gb_s": scale * traced}
