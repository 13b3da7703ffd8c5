"""What can be known of CUDA without a GPU: what is asked of torch, and when."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from harness.reference import comm, state
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset
from harness.reference.demo import amp
from harness.reference.devices import choose_device, missing_device, worker_context
from harness.reference.errors import CheckpointError
from harness.reference.loop import build_training
from harness.reference.rng import capture_rng_state, derive_seed, restore_rng_state
from harness.reference.state import apply_rng_states, capture_rank_rng
from harness.reference.train import main
from harness.reference.world import World


class Gpus:
    """Stands in for a machine with GPUs: their generators, and what was asked of them."""

    def __init__(self, number: int, running: bool = True) -> None:
        self.running = running
        self.generators = [torch.full((16,), device, dtype=torch.uint8) for device in range(number)]
        self.current: torch.device | None = None
        self.seeds: list[int] = []

    def install(self, monkeypatch) -> Gpus:
        stand_ins = {
            "is_available": lambda: bool(self.generators),
            "is_initialized": lambda: self.running,
            "device_count": lambda: len(self.generators),
            "set_device": lambda device: setattr(self, "current", device),
            "get_rng_state_all": lambda: [one.clone() for one in self.generators],
            "set_rng_state": lambda one, device: self.generators[device].copy_(one),
            "manual_seed_all": self.seeds.append,
        }
        for name, action in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, action)
        return self


def refuse(*_, **__):
    raise AssertionError("CUDA was asked for")


@pytest.fixture
def no_cuda(monkeypatch):
    """A machine on which whoever asks CUDA for anything fails."""
    for name in ("_lazy_init", "set_device", "get_rng_state_all", "set_rng_state", "device_count"):
        monkeypatch.setattr(torch.cuda, name, refuse)


def test_the_cpu_needs_no_cuda(no_cuda):
    assert choose_device("cpu", World(1, 1, 2)) == torch.device("cpu")
    assert missing_device("cpu", World(1, 1, 2)) is None


def test_each_rank_takes_the_gpu_of_its_place_on_its_machine(monkeypatch):
    gpus = Gpus(2).install(monkeypatch)
    assert choose_device("cuda", World(rank=3, local_rank=1, world_size=4)) == torch.device("cuda", 1)
    assert gpus.current == torch.device("cuda", 1)


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, found 'tpu'"):
        choose_device("tpu", World())


@pytest.mark.parametrize(
    ("gpus", "local_rank", "problem"), [(0, 0, "found none"), (1, 1, "found 1 and LOCAL_RANK=1"), (2, 1, None)]
)
def test_a_machine_without_enough_gpus_is_told(monkeypatch, gpus, local_rank, problem):
    Gpus(gpus).install(monkeypatch)
    found = missing_device("cuda", World(local_rank, local_rank, 2))
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_the_backend_follows_the_device(monkeypatch, device, backend):
    said = []
    monkeypatch.setattr(dist, "init_process_group", lambda name, **_: said.append(name))
    comm.start_process_group(World(0, 0, 2), "file:///nowhere", 1.0, device)
    assert said == [backend]


def test_the_trainer_and_a_demo_say_that_there_is_no_gpu(monkeypatch, capsys, tmp_path):
    Gpus(0).install(monkeypatch)
    assert main(["--device", "cuda", "--out", str(tmp_path / "out")]) == 2
    assert amp.main(["--device", "cuda", "--out", str(tmp_path / "demo")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == ["usage error: --device cuda: expected a CUDA build of torch and a GPU, found none"] * 2
    assert list(tmp_path.iterdir()) == []


def test_workers_are_forked_from_a_process_without_cuda():
    assert worker_context("cpu").get_start_method() == "fork"
    assert worker_context("cuda").get_start_method() == "forkserver"
    found = []
    for device in ("cpu", "cuda"):
        config = TrainConfig(device=device, workers=1)
        loader = EpochLoader(SuccessorDataset(4 * config.global_batch, config.seed), config, World())
        found.append([(indices.tolist(), tokens.tolist()) for indices, tokens in loader.epoch(0, 1)])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_every_gpu_s_generator_is_saved_and_restored(monkeypatch):
    gpus = Gpus(2).install(monkeypatch)
    saved = capture_rng_state()
    for generator in gpus.generators:
        generator.fill_(99)
    restore_rng_state(saved)
    assert [set(one.tolist()) for one in gpus.generators] == [{0}, {1}]


def test_generators_of_gpus_that_do_not_run_are_not_asked_for(monkeypatch):
    Gpus(2, running=False).install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", refuse)
    assert capture_rng_state()["cuda"] == []


def job(device: str):
    training = build_training(TrainConfig(model="mlp"), World())
    training.state.step = 7
    return replace(training, device=torch.device(device))


def on_gpus(training, number: int) -> dict:
    return {**capture_rank_rng(training), "cuda": [torch.zeros(16, dtype=torch.uint8)] * number}


def test_a_checkpoint_of_a_gpu_does_not_start_cuda_in_a_job_of_the_cpu(no_cuda):
    training = job("cpu")
    saved = on_gpus(training, 2)
    first = torch.rand(3)
    warning = apply_rng_states(training, [saved])
    assert torch.equal(torch.rand(3), first)
    assert "saved on a GPU, resumed on the CPU" in warning


def test_a_checkpoint_of_the_cpu_gives_a_gpu_a_fresh_stream(monkeypatch):
    gpus = Gpus(1).install(monkeypatch)
    training = job("cuda:0")
    seeded_before = len(gpus.seeds)
    warning = apply_rng_states(training, [on_gpus(training, 0)])
    assert "saved on the CPU, resumed on cuda:0" in warning
    assert gpus.seeds[seeded_before:] == [derive_seed(training.config.seed, 7, 0)]


def test_a_checkpoint_of_gpus_goes_on_on_gpus(monkeypatch):
    gpus = Gpus(2).install(monkeypatch)
    training = job("cuda:0")
    saved = capture_rank_rng(training)
    gpus.generators[0].fill_(99)
    assert apply_rng_states(training, [saved]) is None
    assert set(gpus.generators[0].tolist()) == {0}


def test_fewer_gpus_than_generators_is_a_refusal(monkeypatch):
    Gpus(1).install(monkeypatch)
    with pytest.raises(CheckpointError, match=r"generators of rank 0: the state holds 3 CUDA generators, this process has 1"):
        state.apply_rng_states(job("cuda:0"), [on_gpus(job("cpu"), 3)])


SPY = """
import importlib, pkgutil, traceback
import torch
asked = []
def spy(name):
    real = getattr(torch.cuda, name)
    def call(*arguments, **options):
        asked.append(f"{name}: {traceback.format_stack(limit=2)[0].strip()}")
        return real(*arguments, **options)
    setattr(torch.cuda, name, call)
for name in ("is_available", "device_count", "set_device", "_lazy_init"):
    spy(name)
import harness.reference
import harness.probe.train_reference
for module in pkgutil.walk_packages(harness.reference.__path__, "harness.reference."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from harness.reference.config import parse_config
parse_config(["--device", "cuda", "--out", "nowhere"])
print("\\n".join(asked) or "nothing")
"""


def test_importing_and_reading_options_asks_nothing_of_cuda():
    # Even to ask whether there is a GPU would start the driver in the process that ranks are forked from.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SPY], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "nothing", done.stdout + done.stderr
