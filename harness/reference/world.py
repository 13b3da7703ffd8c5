"""Which process this is among how many, as the launcher says it through the environment (the names are torchrun's)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """This process's place in the job.

    Attributes:
        rank: Number of this process, from 0, over all machines.
        local_rank: Number of this process on its machine, from 0; the CUDA device to use.
        world_size: Number of processes.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def read_world(environment: Mapping[str, str]) -> World:
    """Read RANK, LOCAL_RANK and WORLD_SIZE; a process without them is a job of one rank.

    Raises:
        ValueError: A value is no number or out of range; the text names every problem.
    """
    problems: list[str] = []
    values: dict[str, int] = {}
    for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        text = environment.get(name, default)
        try:
            values[name] = int(text)
        except ValueError:
            problems.append(f"{name}={text!r} in the environment is not a number")
    if not problems and not 0 <= values["RANK"] < values["WORLD_SIZE"]:
        problems.append(f"RANK={values['RANK']} is not within 0 ≤ RANK < WORLD_SIZE={values['WORLD_SIZE']}")
    if not problems and values["LOCAL_RANK"] < 0:
        problems.append(f"LOCAL_RANK={values['LOCAL_RANK']} is negative")
    if problems:
        raise ValueError("; ".join(problems))
    return World(values["RANK"], values["LOCAL_RANK"], values["WORLD_SIZE"])
