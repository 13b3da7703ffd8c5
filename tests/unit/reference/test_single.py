from __future__ import annotations

import hashlib
import os
import random

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from harness.reference import atomic
from harness.reference.errors import CheckpointError
from harness.reference.rng import restore_rng_state
from harness.reference.single import load_checkpoint, save_checkpoint
from harness.reference.state import TrainState

BOTH = pytest.mark.parametrize("mmap", [False, True])


def parts():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = AdamW(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return model, optimizer, scheduler


def step(model, optimizer, scheduler) -> float:
    optimizer.zero_grad()
    loss = model(torch.randn(6, 4) * random.random()).square().sum()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return float(loss.detach())


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a/b/job.pt"
    job = parts()
    step(*job)
    state = TrainState(batch=5, step=4, epoch=1, batch_in_epoch=2, loss_history=[3.0, 2.0])
    size, sha256 = save_checkpoint(*job, state, path, scaler=GradScaler("cpu"), extras={"note": "x", "more": torch.arange(3)})
    assert path.stat().st_size == size
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    assert os.listdir(path.parent) == ["job.pt"]
    return path, job


@BOTH
def test_a_plain_trainer_goes_on_from_its_file(saved, mmap):
    path, job = saved
    payload = load_checkpoint(path, mmap=mmap)
    restore_rng_state(payload["rng"][0])
    expected = [step(*job) for _ in range(3)]
    model, optimizer, scheduler = parts()
    model.load_state_dict(payload["model"])
    optimizer.load_state_dict(payload["optimizer"])
    scheduler.load_state_dict(payload["scheduler"])
    restore_rng_state(payload["rng"][0])
    assert [step(model, optimizer, scheduler) for _ in range(3)] == expected
    assert payload["state"] == {"batch": 5, "step": 4, "loss_history": [3.0, 2.0]}
    assert payload["data"] == {"epoch": 1, "batch_in_epoch": 2, "epoch_order": None}
    assert payload["scaler"]["scale"] == GradScaler("cpu").get_scale()
    assert payload["note"] == "x"
    assert payload["more"].tolist() == [0, 1, 2]


def plain(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def test_a_mapped_file_holds_the_same(saved):
    path, _ = saved
    read, mapped = load_checkpoint(path), load_checkpoint(path, mmap=True)
    assert plain(read) == plain(mapped)
    assert read["model"].keys() == mapped["model"].keys()


def test_only_mmap_maps_and_never_reads_the_whole_file(saved, monkeypatch):
    asked = []
    original = torch.load
    monkeypatch.setattr(atomic.torch, "load", lambda *args, **kwargs: asked.append(kwargs["mmap"]) or original(*args, **kwargs))
    load_checkpoint(saved[0])
    monkeypatch.setattr(atomic, "read_bytes", lambda path: pytest.fail("read into memory"))
    load_checkpoint(saved[0], mmap=True)
    assert asked == [False, True]


def test_loading_changes_no_byte_of_a_mapped_file(saved):
    before = saved[0].read_bytes()
    payload = load_checkpoint(saved[0], mmap=True)
    for tensor in payload["model"].values():
        tensor.zero_()
    assert saved[0].read_bytes() == before


@BOTH
def test_a_truncated_file_is_refused(saved, mmap):
    path, _ = saved
    data = path.read_bytes()
    for size in (0, 1, 50, len(data) // 2, len(data) - 100, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=rf"checksum line missing .*job\.pt: .*found {size} bytes"):
            load_checkpoint(path, mmap=mmap)


@BOTH
def test_a_flipped_bit_is_refused_wherever_it_is(saved, mmap):
    path, _ = saved
    data = path.read_bytes()
    places = [*range(0, len(data), max(1, len(data) // 40)), *range(len(data) - 120, len(data), 7), len(data) - 1]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 4
        path.write_bytes(bytes(flipped))
        with pytest.raises(CheckpointError, match=r"(sha256 mismatch|size mismatch|checksum line missing).*job\.pt"):
            load_checkpoint(path, mmap=mmap)


@BOTH
def test_a_file_with_more_at_its_end_or_in_it_is_refused(saved, mmap):
    path, _ = saved
    data = path.read_bytes()
    for wrong in (data + b"\0", data[:200] + b"\0" + data[200:]):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"mismatch|missing"):
            load_checkpoint(path, mmap=mmap)


@BOTH
def test_a_missing_file_and_something_else_are_refused(tmp_path, mmap):
    with pytest.raises(CheckpointError, match=r"file missing: .*none\.pt"):
        load_checkpoint(tmp_path / "none.pt", mmap=mmap)
    for number, payload in enumerate(([1, 2], {"schema": "other"}, {"schema": 3}, {})):
        path = tmp_path / f"{number}.pt"
        atomic.atomic_save(payload, path)
        with pytest.raises(CheckpointError, match=r"unknown schema: .*expected ckpt\.v1"):
            load_checkpoint(path, mmap=mmap)


@pytest.mark.parametrize("name", ["model", "schema", "rng", "optimizer"])
def test_an_extra_must_not_hide_a_part(tmp_path, name):
    with pytest.raises(ValueError, match=f"extras must not be named as parts of the checkpoint, found {name}"):
        save_checkpoint(*parts(), TrainState(), tmp_path / "job.pt", extras={name: 1, "fine": 2})
    assert list(tmp_path.iterdir()) == []
