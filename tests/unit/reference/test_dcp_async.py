from __future__ import annotations

import threading

import pytest
import torch

from harness.reference import dcp_async
from harness.reference.checkpoint import CheckpointStore
from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.hooks import TrainingHooks
from harness.reference.loop import build_training
from harness.reference.tensors import live_tensors
from harness.reference.world import World

PATIENCE_S = 60.0


def job(out, **settings):
    config = TrainConfig(format="dcp-async", out=out, model="mlp", ema=0.9, **settings)
    training = build_training(config, World())
    return training, load_format(config)


def move_on(training, batch: int) -> None:
    training.state.batch = training.state.step = batch
    for tensor in live_tensors(training).values():
        tensor.values.fill_(batch)


def values(training) -> set[float]:
    return {value for tensor in live_tensors(training).values() for value in tensor.values.tolist()}


@pytest.fixture
def gate(monkeypatch):
    """Writing waits until this is set."""
    opened = threading.Event()

    class WaitingWriter(dcp_async.PlainWriter):
        def write_data(self, plan, planner):
            assert opened.wait(PATIENCE_S)
            return super().write_data(plan, planner)

    monkeypatch.setattr(dcp_async, "PlainWriter", WaitingWriter)
    yield opened
    opened.set()


@pytest.fixture
def broken(monkeypatch):
    class BrokenWriter(dcp_async.PlainWriter):
        def write_data(self, plan, planner):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp_async, "PlainWriter", BrokenWriter)


def test_save_returns_while_the_files_are_still_being_written(tmp_path, gate):
    training, store = job(tmp_path)
    path = tmp_path / "step-00000004"
    move_on(training, 4)
    assert store.save(training, path) is False
    assert store.finish(wait=False) is False
    assert not (path / "manifest.json").exists()
    assert store.find(tmp_path) == []
    move_on(training, 5)  # training goes on; the file must not see it
    gate.set()
    assert store.finish(wait=True) is True
    assert store.finish(wait=True) is True
    header = store.verify(path)
    assert (header.batch, header.step) == (4, 4)
    move_on(training, 6)
    store.load(training, path)
    assert values(training) == {4.0}
    assert training.state.batch == 4


class Calls(TrainingHooks):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def save_begin(self, step, checkpoint):
        self.calls.append(f"begin {step}")

    def save_end(self, step, checkpoint):
        self.calls.append(f"end {step}")

    def save_failed(self, step, checkpoint, error):
        self.calls.append(f"failed {step}")


def test_the_next_save_waits_for_the_last(tmp_path, gate):
    training, form = job(tmp_path)
    store, hooks = CheckpointStore(form, tmp_path, 9), Calls()
    move_on(training, 4)
    store.save(training, hooks, print)
    store.poll(training, hooks, print)
    assert hooks.calls == ["begin 4"]
    threading.Timer(0.2, gate.set).start()
    move_on(training, 8)
    store.save(training, hooks, print)
    assert hooks.calls[:3] == ["begin 4", "end 4", "begin 8"]
    store.finish(training, hooks, print)
    assert hooks.calls == ["begin 4", "end 4", "begin 8", "end 8"]
    assert [path.name for path in form.find(tmp_path)] == ["step-00000008", "step-00000004"]
    form.load(training, tmp_path / "step-00000004")
    assert values(training) == {4.0}


def test_a_failed_write_is_an_error_and_costs_that_save_only(tmp_path, broken, monkeypatch):
    training, form = job(tmp_path)
    with monkeypatch.context() as healthy:
        healthy.setattr(dcp_async, "PlainWriter", dcp_async.PlainWriter.__mro__[1])
        form.save(training, tmp_path / "step-00000000")
        assert form.finish(wait=True)
    move_on(training, 4)
    assert form.save(training, tmp_path / "step-00000004") is False
    with pytest.raises(CheckpointError, match=r"cannot save .*step-00000004: rank 0: .*No space left on device"):
        form.finish(wait=True)
    assert form.finish(wait=True) is True
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000000"]
    form.verify(tmp_path / "step-00000000")


@pytest.mark.parametrize("choice", ["fail", "continue"])
def test_the_job_fails_or_goes_on_as_it_was_told(tmp_path, broken, choice):
    training, form = job(tmp_path, on_save_error=choice)
    store, hooks, said = CheckpointStore(form, tmp_path, 9), Calls(), []
    move_on(training, 4)
    store.save(training, hooks, said.append)
    if choice == "fail":
        with pytest.raises(CheckpointError, match="No space left on device"):
            store.finish(training, hooks, said.append)
    else:
        store.finish(training, hooks, said.append)
        assert "training goes on, the next save is due" in said[0]
    assert hooks.calls == ["begin 4", "failed 4"]


def test_the_copy_in_memory_is_a_copy(tmp_path, gate):
    training, form = job(tmp_path)
    move_on(training, 4)
    form.save(training, tmp_path / "step-00000004")
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.mul_(0)
    gate.set()
    form.finish(wait=True)
    form.load(training, tmp_path / "step-00000004")
    assert values(training) == {4.0}


def test_the_memory_of_the_copy_is_kept_and_what_grows_is_copied_anew(tmp_path, monkeypatch):
    staged = []
    real = dcp_async.async_save

    def async_save(state, *, async_stager, **more):
        stage = async_stager.stage
        with monkeypatch.context() as watched:
            watched.setattr(async_stager, "stage", lambda state: staged.append(stage(state)) or staged[-1])
            return real(state, async_stager=async_stager, **more)

    monkeypatch.setattr(dcp_async, "async_save", async_save)
    training, form = job(tmp_path)
    for number in (4, 8, 12):
        move_on(training, number)
        training.state.loss_history.extend([0.5] * 50 * number)
        form.save(training, tmp_path / f"step-{number:08d}")
        form.finish(wait=True)
    for part in ("model", "ema"):
        for name in staged[0][part]:
            assert len({one[part][name].untyped_storage().data_ptr() for one in staged}) == 1, name
    assert len({one["small"].numel() for one in staged}) == 3
    for number in (4, 8, 12):
        form.load(training, tmp_path / f"step-{number:08d}")
        assert values(training) == {float(number)}
        assert training.state.batch == number


def test_memory_that_is_still_being_written_is_not_overwritten(tmp_path, gate):
    training, form = job(tmp_path)
    move_on(training, 4)
    form.save(training, tmp_path / "step-00000004")
    move_on(training, 8)
    with pytest.raises(RuntimeError, match=r"step-00000004 is still being written, so .*step-00000008 cannot be"):
        form.save(training, tmp_path / "step-00000008")
    gate.set()
    form.finish(wait=True)
    form.load(training, tmp_path / "step-00000004")
    assert values(training) == {4.0}
    assert form.find(tmp_path) == [tmp_path / "step-00000004"]
