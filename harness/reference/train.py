"""The command: `python -m harness.reference.train ARGS`, alone or under `torchrun -m`.

Exit codes: 0 all planned batches are done, 1 failure, 2 wrong usage, 3 refusal to start on the checkpoints there are.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import torch
import torch._dynamo  # AdamW's constructor imports it anyway; here, processes forked after the import share it

from harness.reference import planted_resume
from harness.reference.comm import is_peer_loss, start_process_group, stop_process_group
from harness.reference.config import TrainConfig, check_world, parse_config
from harness.reference.devices import missing_device
from harness.reference.errors import CheckpointError, RefusalError, one_line
from harness.reference.hooks import TrainingHooks
from harness.reference.loop import run_job
from harness.reference.world import World, read_world

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3


def main(argv: Sequence[str], hooks: TrainingHooks | None = None) -> int:
    """Run one rank of a training job.

    Args:
        argv: The command line, without the program name. RANK, LOCAL_RANK and WORLD_SIZE come from the environment.
        hooks: Who watches; nobody by default.

    Returns:
        The exit code. With several ranks the process must then leave through `leave`, not through the interpreter's
        own shutdown.
    """
    hooks = hooks or TrainingHooks()
    try:
        config, world = parse_config(argv), read_world(os.environ)
        check_world(config, world)
        check_surroundings(config, world)
    except ValueError as error:
        print(f"usage error: {error}", file=sys.stderr)
        return USAGE
    torch.set_num_threads(1)  # ranks share the cores, and sums are then made in one order
    hooks.start(world, list(argv))
    try:
        run_rank(config, world, hooks)
    except RefusalError as error:
        hooks.refuse(str(error))
        return _give_up(world, "refused", error, REFUSED)
    except Exception as error:  # noqa: BLE001  whatever it is, the exit code and the event log must say so
        hooks.failed(one_line(error))
        if not (isinstance(error, (CheckpointError, OSError, MemoryError)) or is_peer_loss(error)):
            traceback.print_exc()  # not a fault of the surroundings: the code is wrong, and the place matters
        return _give_up(world, "failed", error, FAILED)
    return DONE


def check_surroundings(config: TrainConfig, world: World) -> None:
    """Check what the options need of the machine and the environment.

    Raises:
        ValueError: Something is missing; the text says what.
    """
    problems = []
    if (lacking := missing_device(config.device, world)) is not None:
        problems.append(lacking)
    if world.world_size > 1 and config.init_method == "env://":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            problems.append(
                f"--init-method env:// with several ranks: expected {', '.join(missing)} in the environment (torchrun sets them)"
            )
    if problems:
        raise ValueError("; ".join(problems))


def run_rank(config: TrainConfig, world: World, hooks: TrainingHooks) -> None:
    """Join the other ranks, do the job, and report its end.

    Raises:
        RefusalError: The checkpoints cannot be resumed from.
        CheckpointError: A save failed.
        RuntimeError: Another rank is gone.
    """

    def say(line: str) -> None:
        if world.rank == 0:
            print(line, flush=True)

    timeout_s = 86_400.0 if "no-timeout" in config.defect else config.collective_timeout_s
    start_process_group(world, config.init_method, timeout_s, config.device)
    state = run_job(config, world, hooks, say)
    stop_process_group()
    hooks.end(state.step, state.batch)
    planted_resume.after_end()


def _give_up(world: World, word: str, error: BaseException, code: int) -> int:
    print(f"rank {world.rank}: {word}: {one_line(error)}", file=sys.stderr, flush=True)
    return code


def leave(code: int) -> None:
    """End the process at once, with everything printed.

    The interpreter's shutdown can hang for ever: it frees DDP's reducer while holding the lock that gloo's threads,
    which the process group waits for, need to finish (seen with torch 2.13).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
