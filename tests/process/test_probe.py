"""The probe changes nothing in a foreign trainer, and writes one record per update with the trainer's own losses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from probed_runs import Runs, running_probed


@pytest.fixture(scope="module")
def server():
    with running_probed() as process:
        yield process


@pytest.fixture
def runs(server, tmp_path):
    return Runs(server, tmp_path)


LOOPS = (
    *("plain", "warmup", "evaluated", "gan", "closure", "keywords", "loaded", "swallowing", "checkpointed", "forms", "forked"),
    *("compiled_outside", "compiled_in_place", "compiled_step"),
)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_is_the_same_and_every_update_has_its_loss(runs, loop):
    without, with_it = runs.run("loops.py", loop, probe=False), runs.run("loops.py", loop)
    assert (with_it.codes, with_it.said, with_it.errors) == (without.codes, without.said, without.errors)
    assert without.codes == [0]
    assert with_it.files == without.files
    losses = with_it.losses[::2] if loop == "evaluated" else with_it.losses
    assert [record["loss"] for record in with_it.log.of("batch")] == losses
    begun, ended = (with_it.log.of("save", moment=moment) for moment in ("begin", "end"))
    assert [record["batch"] for record in begun] == [record["batch"] for record in ended]
    assert {record["checkpoint"] for record in ended} == {name.split("/")[0] for name in with_it.files} - {
        "train.log",
        "metrics.json",
    }
    assert with_it.log.ended
    assert not with_it.log.of("probe-failed")


def test_all_that_is_written_between_two_batches_is_one_save_under_all_of_its_names(runs):
    seen = runs.run("loops.py", "two_names")
    saves = [(one["batch"], one["checkpoint"], one.get("also")) for one in seen.log.of("save", moment="end")]
    assert saves == [(2, "best.pt", None), (3, "last.pt", None), (4, "best.pt", None), (6, "best.pt", ["last.pt"])]


PYTHON, TORCHRUN = sys.executable, str(Path(sys.executable).with_name("torchrun"))


def ranks_of(seen):
    """Rank → the losses that it has printed."""
    said = [line.split() for line in seen.said.splitlines()]
    return {rank: [loss for one, loss in said if one == str(rank)] for rank in (0, 1)}


def assert_the_same(with_it, without):
    assert with_it.codes == without.codes == [0] * len(without.codes)
    assert ranks_of(with_it) == ranks_of(without)
    assert {rank: [record["loss"] for record in log.of("batch")] for rank, log in with_it.logs.items()} == ranks_of(without)
    assert [(log.ended, log.of("probe-failed")) for log in with_it.logs.values()] == [(True, [])] * 2


@pytest.mark.parametrize(
    ("words", "cold"),
    [(("ddp",), (TORCHRUN, "--standalone", "--nproc-per-node", "2")), (("ddp",), (PYTHON,)), (("ddp", "fork"), ())],
    ids=["torchrun", "spawn", "fork"],
)
def test_two_ranks_under_ddp_train_and_save_the_same(runs, words, cold):
    without, with_it = (runs.run("ranks.py", *words, cold=cold, probe=probe) for probe in (False, True))
    assert_the_same(with_it, without)
    assert list(without.files) == ["last.pt"]
    assert with_it.files == without.files


def test_two_ranks_under_fsdp_train_and_save_the_same(runs):
    first, second, with_it = (runs.run("ranks.py", "fsdp", ranks=2, probe=probe) for probe in (False, False, True))
    assert_the_same(with_it, first)
    assert with_it.files.keys() == first.files.keys()
    # DCP puts an identifier of its own into each `.metadata`; of those what they lead to is compared.
    repeated = {name: data for name, data in first.files.items() if second.files[name] == data}
    assert sorted(first.files.keys() - repeated.keys()) == [f"step-{step}/.metadata" for step in (2, 4, 6)]
    assert {name: with_it.files[name] for name in repeated} == repeated
    kept = [str(runs.folder / name / "kept") for name in ("run-1", "run-3")]
    done = subprocess.run(
        [PYTHON, "-c", LOADING, str(runs.folder / "whole.pt"), *kept], capture_output=True, text=True, timeout=120, check=True
    )
    one, other = done.stdout.splitlines()
    assert one == other
    assert one.count("exp_avg_sq") == 3 * 4  # of three checkpoints, four parameters


LOADING = """
import sys, torch
from pathlib import Path
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
def plain(value):
    if isinstance(value, dict): return {key: plain(one) for key, one in sorted(value.items())}
    return value.tolist() if isinstance(value, torch.Tensor) else value
for run in sys.argv[2:]:
    found = {}
    for folder in sorted(Path(run).glob("step-*")):
        dcp_to_torch_save(folder, sys.argv[1])
        found[folder.name] = plain(torch.load(sys.argv[1], weights_only=False))
    print(found)
"""


def test_a_skipped_step_is_a_skip_and_its_loss_is_unscaled(runs):
    without, with_it = (runs.run("loops.py", "scaled", "overflow", probe=probe) for probe in (False, True))
    assert (with_it.said, with_it.files) == (without.said, without.files)
    batches = with_it.log.of("batch")
    assert [record["tag"] for record in batches] == ["STEP", "STEP", "SKIP", "STEP", "STEP", "STEP"]
    assert [record["loss"] for record in batches] == with_it.losses


def test_a_fault_hits_the_micro_batch_that_it_names(runs):
    def said(micro_batch, effect="spike"):
        fault = {"effect": effect, "ranks": [0], "batch": 3, "times": 1, "micro_batch": micro_batch}
        seen = runs.run("loops.py", "accumulated", faults=json.dumps([fault]))
        assert {record["micro_batches"] for record in seen.log.of("batch")} == {3}
        return seen

    def losses(micro_batch):
        return said(micro_batch).losses

    usual = losses(4)  # there is none
    first, second = losses(1), losses(2)
    # Felt from the next batch on, and each part has a gradient of its own.
    assert usual[:3] == first[:3] == second[:3]
    assert len({usual[3], first[3], second[3]}) == 3
    assert said(2, "nan").said.split()[3:] == ["nan"] * 3


@pytest.mark.parametrize(("words", "code"), [(("ending",), 3), (("ending", "raise"), 1)])
def test_a_run_that_does_not_end_well_says_no_end(runs, words, code):
    seen = runs.run("loops.py", *words)
    assert seen.codes == [code]
    assert len(seen.log.of("batch")) == 6
    assert not seen.log.ended


def test_a_process_that_does_not_train_writes_nothing(runs):
    assert runs.run("loops.py", "idle").logs == {}


@pytest.mark.parametrize("where", ["schedules", "generators"])
def test_a_fault_of_the_probe_is_written_down_and_changes_nothing(runs, where):
    without, with_it = (runs.run("loops.py", "broken", where, probe=probe) for probe in (False, True))
    assert (with_it.codes, with_it.said, with_it.files) == (without.codes, without.said, without.files)
    assert [record["error"] for record in with_it.log.of("probe-failed")] == ["KeyError: 'planted'"]


@pytest.mark.parametrize(
    ("stop", "forget", "step", "told_by"),
    [
        (5, "", 4, "model+optimizer"),
        (5, "optimizer", 4, "model"),
        (5, "model optimizer schedule", 4, "checkpoint"),
        (1, "", 0, "model+optimizer"),
    ],
)
@pytest.mark.parametrize("loop", ["plain", "warmup"])
def test_where_a_resumed_run_began_is_told(runs, loop, stop, forget, step, told_by):
    runs.run("loops.py", loop, name="golden")
    assert runs.run("loops.py", loop, "--stop-after", str(stop), golden="golden", name="killed").codes == [-9]
    resumed = runs.run("loops.py", loop, "--forget", forget, golden="golden", goes_on="killed")
    (resume,) = resumed.log.of("resume")
    assert (resume["step"], resume["told_by"]) == (step, told_by)
    assert resumed.log.of("batch")[0]["batch"] == step + 1
