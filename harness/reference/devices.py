"""Which device a rank trains on: chosen by `--device` and the rank's place, once the rank is a process of its own.

CUDA does not survive a fork: whoever has started it cannot have children that use it. So nothing is asked of it while modules
are imported or options read, and what a job forks once it trains is not forked from the process that uses the device.

Not tried on a GPU: what is said of CUDA here and elsewhere in this package is tested with stand-ins for torch's calls.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

import torch

from harness.reference.world import World

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # small values travel as CPU tensors in any case


def choose_device(name: str, world: World) -> torch.device:
    """Return where this rank trains, and make it the current device: the rank's own of those of its machine.

    FSDP2 and NCCL use the current device where they are not told another one; without this it would be the first one, on
    every rank.

    Args:
        name: `cpu` or `cuda`.
        world: This rank's place.

    Raises:
        ValueError: Another name.
    """
    if name not in BACKENDS:
        raise ValueError(f"device must be one of {', '.join(BACKENDS)}, found {name!r}")
    if name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def missing_device(name: str, world: World) -> str | None:
    """Return what this machine lacks for this rank, in words, or None. Asks CUDA, so only a process that trains may call it."""
    if name != "cuda":
        return None
    if not torch.cuda.is_available():
        return "--device cuda: expected a CUDA build of torch and a GPU, found none"
    found = torch.cuda.device_count()
    if world.local_rank >= found:
        return f"--device cuda: expected a GPU for each rank of a machine, found {found} and LOCAL_RANK={world.local_rank}"
    return None


def worker_context(name: str) -> BaseContext:
    """Return how the processes that load data are started: by fork of this one, if it does not use CUDA.

    Else by fork of a server, which has read this package's modules and nothing more.
    """
    if name != "cuda":
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.reference.data"])
    return context
