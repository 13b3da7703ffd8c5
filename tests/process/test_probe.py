"""The probe changes nothing in a foreign trainer, and writes one record per update with the trainer's own losses."""

from __future__ import annotations

import json

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


def test_a_skipped_step_is_a_skip_and_its_loss_is_unscaled(runs):
    without, with_it = (runs.run("loops.py", "scaled", "overflow", probe=probe) for probe in (False, True))
    assert (with_it.said, with_it.files) == (without.said, without.files)
    batches = with_it.log.of("batch")
    assert [record["tag"] for record in batches] == ["STEP", "STEP", "SKIP", "STEP", "STEP", "STEP"]
    assert [record["loss"] for record in batches] == with_it.losses


def test_a_fault_hits_the_micro_batch_that_it_names(runs):
    def losses(micro_batch, effect="spike"):
        fault = {"effect": effect, "ranks": [0], "batch": 3, "times": 1, "micro_batch": micro_batch}
        seen = runs.run("loops.py", "accumulated", faults=json.dumps([fault]))
        assert {record["micro_batches"] for record in seen.log.of("batch")} == {3}
        return seen.losses

    usual = losses(4)  # there is none
    first, second = losses(1), losses(2)
    # Felt from the next batch on, and each part has a gradient of its own.
    assert usual[:3] == first[:3] == second[:3]
    assert len({usual[3], first[3], second[3]}) == 3
    assert losses(2, "nan")[3:] == ["nan"] * 3


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
