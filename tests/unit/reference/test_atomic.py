from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from harness.reference import atomic
from harness.reference.atomic import (
    PARALLEL_BYTES,
    WRITE_BACK_BYTES,
    HashingWriter,
    atomic_save,
    make_directory,
    naming,
    read_payload,
    write_payload,
)
from harness.reference.errors import CheckpointError

PAYLOAD = {"schema": "ckpt.v1", "weights": torch.arange(3000, dtype=torch.float32), "step": 3}


class FullDisk(io.RawIOBase):
    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self):
        return True

    def write(self, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = min(len(data), self.room)
        self.room -= written
        return written


def test_what_is_written_is_read(tmp_path):
    size, sha256 = atomic_save(PAYLOAD, tmp_path / "a.pt")
    found = read_payload(tmp_path / "a.pt")
    assert torch.equal(found["weights"], PAYLOAD["weights"])
    assert size == (tmp_path / "a.pt").stat().st_size
    assert len(sha256) == 64
    assert os.listdir(tmp_path) == ["a.pt"]


def test_torch_load_reads_the_file_by_itself(tmp_path):
    atomic_save(PAYLOAD, tmp_path / "a.pt")
    for mmap in (False, True):
        found = torch.load(tmp_path / "a.pt", map_location="cpu", weights_only=True, mmap=mmap)
        assert torch.equal(found["weights"], PAYLOAD["weights"])


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "a.pt"
    atomic_save({"weights": torch.zeros(4)}, path)
    data = path.read_bytes()
    for position in range(0, len(data) * 8, 7):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises(CheckpointError, match=r"a\.pt: expected .*, found"):
            read_payload(path)


@pytest.mark.parametrize("size", [0, 1, 50, -1, -120, -121])
def test_every_cut_is_noticed(tmp_path, size):
    path = tmp_path / "a.pt"
    atomic_save(PAYLOAD, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"a\.pt"):
        read_payload(path)


def test_appended_bytes_and_a_missing_file_are_noticed(tmp_path):
    path = tmp_path / "a.pt"
    atomic_save(PAYLOAD, path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="checksum line missing"):
        read_payload(path)
    with pytest.raises(CheckpointError, match="file missing"):
        read_payload(tmp_path / "b.pt")


def test_code_in_a_file_with_a_good_checksum_does_not_run(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    atomic_save({"x": Hostile()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="cannot decode"):
        read_payload(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "a.pt"
    atomic_save(PAYLOAD, path)
    old = path.read_bytes()

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(atomic.Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output error"):
        atomic_save({"step": 4}, path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("room", [0, 100, 5000, 13000])
def test_a_full_disk_is_reported_as_such_wherever_it_strikes(room):
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_payload(PAYLOAD, FullDisk(room))
    assert caught.value.errno == errno.ENOSPC


def test_short_writes_are_continued():
    class Slow(io.BytesIO):
        def write(self, data):
            return super().write(bytes(data)[:3])

    slow = Slow()
    writer = HashingWriter(slow)
    assert writer.write(b"0123456789") == 10
    assert slow.getvalue() == b"0123456789"
    assert writer.size_bytes == 10


def test_a_save_makes_several_writes(tmp_path):
    sizes = []

    class Counting(io.BytesIO):
        def write(self, data):
            sizes.append(len(data))
            return super().write(data)

    write_payload({"weights": [torch.zeros(5000) for _ in range(20)]}, Counting())
    assert len(sizes) > 3


def test_make_directory_makes_all_above(tmp_path):
    make_directory(tmp_path / "a/b/c")
    make_directory(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()


class HeldPool:
    """A pool whose one thread does nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting = []
        self.submitted = threading.Event()

    def submit(self, action, argument):
        future = Future()
        self.waiting.append((future, action, argument))
        self.submitted.set()
        return future

    def work(self) -> None:
        while self.waiting:
            future, action, argument = self.waiting.pop(0)
            future.set_result(action(argument))


def where(data: np.ndarray) -> tuple[int, int]:
    return data.ctypes.data, data.ctypes.data + data.nbytes


def test_writing_does_not_wait_for_the_hash_of_memory_that_lasts():
    pool, file, lasting = HeldPool(), io.BytesIO(), np.arange(3 * PARALLEL_BYTES, dtype=np.uint8)
    writer = HashingWriter(file, pool, [where(lasting)])
    small = bytearray(b"before")
    writer.write(small)
    writer.write(memoryview(lasting)[:PARALLEL_BYTES])
    small[:] = b"after."
    writer.write(small)
    small[:] = b"reused"  # as torch and the buffer in front do
    writer.write(memoryview(lasting)[PARALLEL_BYTES:])
    assert [len(argument) for _, _, argument in pool.waiting] == [PARALLEL_BYTES, 6, 2 * PARALLEL_BYTES]
    written = b"before" + lasting[:PARALLEL_BYTES].tobytes() + b"after." + lasting[PARALLEL_BYTES:].tobytes()
    assert file.getvalue() == written
    pool.work()
    assert writer.sha256() == hashlib.sha256(written).hexdigest()


@pytest.mark.parametrize("beyond", ["start", "end"])
def test_memory_that_does_not_last_is_hashed_before_it_is_given_back(beyond):
    pool, file, data = HeldPool(), io.BytesIO(), np.ones(2 * PARALLEL_BYTES, dtype=np.uint8)
    start, end = where(data)
    writer = HashingWriter(file, pool, [(start + 1, end) if beyond == "start" else (start, end - 1)])
    thread = threading.Thread(target=lambda: (writer.write(data), data.fill(2)))
    thread.start()
    assert pool.submitted.wait(60)
    thread.join(0.05)
    assert thread.is_alive()
    pool.work()
    thread.join(60)
    assert writer.sha256() == hashlib.sha256(file.getvalue()).hexdigest()
    assert set(file.getvalue()) == {1}


def test_only_tensors_in_the_memory_of_this_machine_last():
    large, small = torch.zeros(PARALLEL_BYTES), torch.zeros(10)
    elsewhere = torch.zeros(PARALLEL_BYTES, device="meta")  # stands for a GPU: `torch.save` writes a copy that it then drops
    payload = {"a": [large[10:], small], "b": (elsewhere, {"c": torch.nn.Parameter(large)}), "d": "text", "e": None}
    address = large.untyped_storage().data_ptr()
    assert list(atomic._memory_of(payload)) == [(address, address + 4 * PARALLEL_BYTES)] * 2


def test_a_large_payload_is_hashed_as_it_was_written(tmp_path):
    whole = torch.arange(3 * PARALLEL_BYTES, dtype=torch.int32)
    payload = {
        "view": whole[5:],
        "whole": whole,
        "odd": torch.arange(PARALLEL_BYTES + 7, dtype=torch.uint8),
        "small": torch.zeros(3),
    }
    size, sha256 = atomic_save(payload, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    assert (size, sha256) == (len(data), hashlib.sha256(data).hexdigest())
    loaded = read_payload(tmp_path / "a.pt")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in payload.items())


def test_the_disk_begins_while_there_is_still_something_to_write(tmp_path, monkeypatch):
    told = []
    real = os.posix_fadvise

    def posix_fadvise(descriptor, start, size, advice):
        told.append((start, size, advice, os.fstat(descriptor).st_size))
        real(descriptor, start, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", posix_fadvise)
    size, _ = atomic_save({"large": [torch.zeros(WRITE_BACK_BYTES // 8) for _ in range(5)]}, tmp_path / "a.pt")
    starts = [start for start, *_ in told]
    ends = [start + length for start, length, *_ in told]
    assert len(told) == 2
    assert starts == [0, *ends[:-1]]
    assert ends == [written for *_, written in told]
    assert ends[0] >= WRITE_BACK_BYTES
    assert ends[-1] < size
    assert {advice for _, _, advice, _ in told} == {os.POSIX_FADV_DONTNEED}


def test_where_the_kernel_cannot_be_asked_nothing_is_missing(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")
    payload = {"large": torch.ones(WRITE_BACK_BYTES)}
    atomic_save(payload, tmp_path / "a.pt")
    assert torch.equal(read_payload(tmp_path / "a.pt")["large"], payload["large"])


@pytest.mark.parametrize("failing", ["file", "directory"])
def test_an_error_of_a_sync_names_what_could_not_be_synced(tmp_path, monkeypatch, failing):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}") == (failing == "directory"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error") as caught:
        atomic_save({"step": 8}, tmp_path / "a.pt")
    assert str(caught.value.filename).startswith(str(tmp_path / "a.pt." if failing == "file" else tmp_path))


def test_an_error_that_names_a_file_keeps_that_name(tmp_path):
    with pytest.raises(OSError, match=r"a\.pt") as caught, naming(tmp_path):
        (tmp_path / "a.pt").read_bytes()
    assert caught.value.filename == str(tmp_path / "a.pt")
