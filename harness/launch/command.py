"""From a workload to the processes of one attempt: arguments, environment, files. Pure.

Responsible for: what each launch executes. Warm and cold ranks get the same variables that torchrun sets, so that one
trainer runs under all three.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.fault import NumericFault
from harness.launch.spec import LaunchSpec, ProcessSpec
from harness.launch.understood import understand
from harness.launch.warm import THREADS
from harness.plan import Plan
from harness.scenario import Command, Reference

_MODULE = "harness.probe.train_reference"
_SCRIPT = "harness.probe.run_script:main"
# A name that does not resolve makes gloo wait for the resolver; every rank is on this machine.
_INJECTED = Path(__file__).parents[1] / "probe" / "injected"
_NETWORK = {"GLOO_SOCKET_IFNAME": "lo"}


def launch_spec(
    plan: Plan, attempt: int, world_size: int, folder: Path, checkpoints: Path, supervisor: int, port: int = 0
) -> LaunchSpec:
    """The processes of one attempt.

    Args:
        plan: of the case.
        attempt: its index, which torchrun would call the restart count.
        world_size: number of ranks.
        folder: the attempt's own directory: logs, output, rendezvous.
        checkpoints: the checkpoint directory.
        supervisor: process id of the harness.
        port: where ranks meet that torchrun would have told a port.
    """
    workload = plan.scenario.workload
    python = workload.python if isinstance(workload, Command) else None
    if attempt and isinstance(workload, Command) and workload.resume_python:
        python = workload.resume_python
    values = {
        "ckpt": str(checkpoints),
        "world_size": str(world_size),
        "python": python or sys.executable,
        "init_method": "env://" if plan.scenario.launch == "torchrun" else f"file://{folder / 'rendezvous'}",
    }
    environment = {
        "HARNESS_EVENT_LOG": str(folder),
        "HARNESS_NUMERIC_FAULTS": numeric_variable(plan.numeric),
        "HARNESS_FLIP_AFTER_BATCH": "" if plan.flip_after is None else str(plan.flip_after),
        **_NETWORK,
        **THREADS,
    }
    processes: tuple[ProcessSpec, ...]
    if isinstance(workload, Command):
        words = workload.resume_command if attempt and workload.resume_command else workload.command
        environment |= _probe(folder, checkpoints) if workload.probe else {}
        if workload.loss_log:
            environment["PYTHONUNBUFFERED"] = "1"  # a line is to be seen when the trainer says it
        filled = [fill(word, values) for word in words]
        warm = workload.probe and plan.scenario.launch == "warm"
        processes = _programs(filled, environment, folder, attempt, port) if warm else (_launcher(filled, environment, folder),)
    elif plan.scenario.launch == "torchrun":
        processes = (_launcher(_torchrun(workload, plan.scenario.seed, values), environment, folder),)
    else:
        processes = tuple(_rank(plan, workload, rank, world_size, values, environment, folder) for rank in range(world_size))
    directory = (workload.directory if isinstance(workload, Command) else None) or str(folder)
    return LaunchSpec(processes=processes, directory=directory, supervisor=supervisor)


def _probe(folder: Path, checkpoints: Path) -> dict[str, str]:
    """What wakes the probe in every Python process; with the uninterrupted run's logs, where there are any yet."""
    golden = folder.parent / "golden"
    path = [str(_INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "HARNESS_PROBE": str(checkpoints),
        "HARNESS_PROBE_GOLDEN": str(golden) if (golden / "baseline.json").is_file() else "",
    }


def numeric_variable(faults: Sequence[NumericFault]) -> str:
    """The value of HARNESS_NUMERIC_FAULTS (docs/event-log.md)."""
    return json.dumps(
        [
            {"effect": f.effect, "ranks": list(f.who.ranks) or None, "batch": f.batch, "times": f.times}
            | ({"micro_batch": f.micro_batch} if f.micro_batch else {})
            for f in faults
        ]
    )


def fill(word: str, values: dict[str, str]) -> str:
    """Replaces `{ckpt}` and the like; any other brace is the command's own."""
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def _launcher(words: list[str], environment: dict[str, str], folder: Path) -> ProcessSpec:
    return ProcessSpec(-1, tuple(words), "", environment, str(folder / "launcher.stdout"), str(folder / "launcher.stderr"))


def _programs(words: list[str], environment: dict[str, str], folder: Path, attempt: int, port: int) -> tuple[ProcessSpec, ...]:
    """The processes that a command line would start, as forks of the preloaded one; the command itself if it is another one."""
    program = understand(words)
    if program is None:
        return (_launcher(words, environment, folder),)
    return tuple(
        ProcessSpec(
            rank=rank,
            arguments=program.words,
            entry=_SCRIPT,
            environment=environment | (torchrun_environment(rank, program.ranks, attempt, port) if program.ranks else {}),
            stdout=str(folder / f"rank-{rank}.stdout"),
            stderr=str(folder / f"rank-{rank}.stderr"),
        )
        for rank in range(program.ranks or 1)
    )


def torchrun_environment(rank: int, world_size: int, attempt: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank, of one machine.

    Source: the documentation of torchrun, environment variables.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(world_size),
        "WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(max(attempt, 0)),
        "TORCHELASTIC_RUN_ID": f"harness-{port}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _torchrun(workload: Reference, seed: int, values: dict[str, str]) -> list[str]:
    arguments = [fill(word, values) for word in workload.arguments(seed)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", values["world_size"]]
    return [*torchrun, "-m", _MODULE, *arguments]


def _rank(
    plan: Plan, workload: Reference, rank: int, world_size: int, values: dict[str, str], environment: dict[str, str], folder: Path
) -> ProcessSpec:
    arguments = [fill(word, values) for word in workload.arguments(plan.scenario.seed)]
    warm = plan.scenario.launch == "warm"
    return ProcessSpec(
        rank=rank,
        arguments=tuple(arguments if warm else [sys.executable, "-m", _MODULE, *arguments]),
        entry=f"{_MODULE}:main" if warm else "",
        environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)},
        stdout=str(folder / f"rank-{rank}.stdout"),
        stderr=str(folder / f"rank-{rank}.stderr"),
    )
