"""Recorded jobs and their crash points, and real crashes at them, in the very directory that was recorded.

DCP writes the directory's own path into a checkpoint, so that contents are equal only where the path is.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from harness import tree
from harness.case import Workbench
from harness.crash_states import CrashState, Points
from harness.explore import Recordings, record
from harness.plan import make_plan
from harness.scenario import Scenario, job
from harness.store import Run, RunDirectory, read_run
from harness.supervisor import run_attempts
from harness.trace import SaveWindow

Tree = dict[str, tuple[str, int, str]]


@dataclass(frozen=True)
class Job:
    """A recorded job, and the save that is looked at: its second one, which finds the first one there."""

    scenario: Scenario
    recordings: Recordings
    window: SaveWindow
    points: Points
    bench: Workbench
    path: Path

    def crash(self, *faults: str) -> Run:
        """Runs the first attempt with these faults for real, where the recorded one ran."""
        shutil.rmtree(self.path, ignore_errors=True)
        scenario = self.scenario.model_copy(update={"faults": faults, "max_attempts": 1})
        plan = make_plan(scenario)
        directory = RunDirectory.create(self.path, plan)
        run_attempts(plan, directory, self.bench.launcher(scenario))
        return read_run(self.path)

    def expected(self, state: CrashState) -> Tree:
        """A rebuilt state, really built."""
        rebuilt = self.path.with_name("rebuilt")
        tree.build(state.tree, self.recordings.recorded.trace.data, rebuilt)
        return described(rebuilt)

    def found(self) -> Tree:
        """The checkpoint directory after a crash."""
        return described(self.path / "checkpoints")


# What is drawn anew in each run, and nothing else: in the names of temporary files a process and a token, in DCP's metadata the
# id of the save, and with it the checksum of the metadata in the manifest, and the manifest's own.
DRAWN_NAME = re.compile(r"\.\d+-[0-9a-f]{8}\.tmp$")
DRAWN = {
    ".metadata": (rb"()[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",),
    "manifest.json": (rb'("name": "\.metadata",\s+"size": \d+,\s+"sha256": ")[0-9a-f]+', rb'(?m)(^ "sha256": ")[0-9a-f]+'),
}


def described(root: Path) -> Tree:
    """Everything in a directory: path → kind, permission bits, and what it holds, but for what is drawn anew in each run."""
    found = {}
    for path, (kind, mode, holds) in tree.read_tree(root).items():
        patterns = next((value for name, value in DRAWN.items() if Path(path).name.startswith(name)), ())
        if kind == "file" and patterns:
            content = (root / path).read_bytes()
            for pattern in patterns:
                content = re.sub(pattern, rb"\1drawn", content)
            holds = hashlib.sha256(content).hexdigest()
        found[DRAWN_NAME.sub(".*.tmp", path)] = (kind, mode, holds)
    return found


def record_job(folder: Path, bench: Workbench, format: str, ranks: int, **settings) -> Job:
    """Records a small job and moves the recording away, so that the next run can take its place."""
    chosen = {"steps": 3, "save_every": 1, "keep_last": 1, "batches_per_epoch": 2, "name": "job", **settings}
    scenario = job(format, ranks=ranks, **chosen)
    folder.mkdir(parents=True)
    recordings = record(scenario, bench, folder)
    assert (recordings.unstable, recordings.unseen) == ("", ())
    path, kept = recordings.recorded.directory.path, folder / "kept"
    path.rename(kept)
    data = kept / "attempt-000" / recordings.recorded.trace.data.name
    trace = replace(recordings.recorded.trace, data=data)
    recorded = replace(recordings.recorded, directory=RunDirectory(kept), trace=trace)
    recordings = replace(recordings, recorded=recorded, traces=(trace, *recordings.traces[1:]))
    window = trace.saves()[1]
    return Job(scenario, recordings, window, recordings.points(window), bench, path)
