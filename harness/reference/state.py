"""What a training job consists of, and which of it must survive: the one list that every checkpoint format uses.

A part that is forgotten here is forgotten in every format, so this is the file to compare with one's own trainer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from harness.reference.config import TrainConfig
from harness.reference.errors import CheckpointError
from harness.reference.rng import derive_seed, restore_rng_state, seed_everything
from harness.reference.world import World

CHECKPOINT_SCHEMA = "ckpt.v1"


@dataclass
class TrainState:
    """How far the job is.

    Attributes:
        batch: Batches taken by the whole job, skipped ones included.
        step: Completed optimizer updates; a skipped batch completes none.
        epoch: The epoch that the next batch belongs to, from 0.
        batch_in_epoch: Batches of that epoch already taken.
        loss_history: Global mean loss of each batch.
    """

    batch: int = 0
    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    loss_history: list[float] = field(default_factory=list)


@dataclass
class Training:
    """The live objects of one rank.

    Attributes:
        config: The job.
        world: This rank's place in it.
        model: The bare module: its parameter names are the same with and without DDP, on any number of ranks.
        wrapped: What the loop calls: the module inside DDP, or itself on one rank.
        optimizer: AdamW over the parameters.
        scheduler: Its learning rate.
        scaler: Loss scaling, in float16 only.
        state: The counters.
        device: Where the model lives.
    """

    config: TrainConfig
    world: World
    model: nn.Module
    wrapped: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    scaler: GradScaler | None
    state: TrainState
    device: torch.device


def parameter_names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the name of each of the optimizer's parameters, in the optimizer's order.

    Raises:
        ValueError: The optimizer holds a parameter that is not the model's.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unknown = sum(id(parameter) not in names for parameter in parameters)
    if unknown:
        raise ValueError(f"{unknown} of the optimizer's {len(parameters)} parameters do not belong to the model")
    return [names[id(parameter)] for parameter in parameters]


def optimizer_state_by_name(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state keyed by parameter name.

    `Optimizer.state_dict` numbers the parameters in the order in which they were passed; after a change of that order
    it gives every parameter its neighbour's moments, in silence where the shapes agree.

    Returns:
        `state`: name → {key: tensor}, the live tensors; `param_groups`: the options, with `params` a list of names.
    """
    names = parameter_names(model, optimizer)
    numbered = optimizer.state_dict()
    state = {names[number]: values for number, values in numbered["state"].items()}
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in numbered["param_groups"]]
    return {"state": state, "param_groups": groups}


def load_optimizer_state_by_name(model: nn.Module, optimizer: Optimizer, named: dict[str, Any], path: object) -> None:
    """Put back what `optimizer_state_by_name` returned, whatever the order of the parameters is now.

    Raises:
        CheckpointError: The groups do not hold the same parameters.
    """
    names = parameter_names(model, optimizer)
    numbers = {name: number for number, name in enumerate(names)}
    current = optimizer.state_dict()["param_groups"]
    expected = [sorted(names[number] for number in group["params"]) for group in current]
    found = [sorted(group["params"]) for group in named["param_groups"]]
    if expected != found:
        raise CheckpointError(f"optimizer parameters differ: {path}: expected {expected}, found {found}")
    groups = [{**saved, "params": now["params"]} for saved, now in zip(named["param_groups"], current, strict=True)]
    state = {numbers[name]: values for name, values in named["state"].items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def load_model_state(model: nn.Module, state: dict[str, Tensor], path: object) -> None:
    """Load weights and buffers, strictly.

    Raises:
        CheckpointError: A name is missing or unknown, or a shape differs.
    """
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"model differs: {path}: expected this model's tensors, found {text}") from error


def create_optimizer_state(optimizer: AdamW) -> None:
    """Make AdamW's moments now, as zeros, just as its first step would.

    `torch.distributed.checkpoint` needs them to exist before a load, and otherwise makes them by a phantom
    `optimizer.step()` on zero gradients, which leaves the step counters at 1. A save before the first completed step
    (the first batches were all skipped) would also have nothing to write.

    Source: torch/distributed/checkpoint/state_dict.py, `_init_optim_state`; torch/optim/adamw.py.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device if group["fused"] else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def small_state(training: Training) -> dict[str, Any]:
    """Return everything that is small and the same on every rank: all but tensors of the model, moments, and RNG."""
    config, state = training.config, training.state
    return {
        "schema": CHECKPOINT_SCHEMA,
        "world_size": training.world.world_size,
        "state": {"batch": state.batch, "step": state.step, "loss_history": list(state.loss_history)},
        "data": {"epoch": state.epoch, "batch_in_epoch": state.batch_in_epoch, "sampler_seed": config.seed},
        "job": job_identity(config),
        "scheduler": training.scheduler.state_dict(),
        "scaler": None if training.scaler is None else training.scaler.state_dict(),
    }


def job_identity(config: TrainConfig) -> dict[str, Any]:
    """Return the options that decide data order and random draws: with others, a resume is not a resume."""
    return {
        "seed": config.seed,
        "rng_scope": config.rng_scope,
        "global_batch": config.global_batch,
        "batches_per_epoch": config.batches_per_epoch,
        "precision": config.precision,
    }


def apply_small_state(training: Training, small: dict[str, Any], path: object, omitted: Collection[str] = ()) -> None:
    """Put back what `small_state` returned.

    Args:
        training: The job to change.
        small: From the checkpoint.
        path: The checkpoint, for the text of errors.
        omitted: Parts that a planted defect leaves out.

    Raises:
        CheckpointError: Unknown schema, or the checkpoint belongs to a job with other options.
    """
    check_schema(small.get("schema"), path)
    expected, found = job_identity(training.config), small["job"]
    if expected != found:
        raise CheckpointError(f"other job: {path}: expected {expected}, found {found}")
    counters, data, state = small["state"], small["data"], training.state
    state.batch, state.step = counters["batch"], counters["step"]
    state.loss_history = list(counters["loss_history"])
    state.epoch, state.batch_in_epoch = data["epoch"], data["batch_in_epoch"]
    if "scheduler" not in omitted:
        training.scheduler.load_state_dict(small["scheduler"])
    if training.scaler is not None and "scaler" not in omitted:
        training.scaler.load_state_dict(small["scaler"])


def check_schema(schema: object, path: object) -> None:
    """Raise `CheckpointError` unless the schema is one that this loader knows."""
    if schema != CHECKPOINT_SCHEMA:
        raise CheckpointError(f"unknown schema: {path}: expected {CHECKPOINT_SCHEMA}, found {schema!r}")


def apply_rng_states(training: Training, states: list[dict[str, Any]], omitted: Collection[str] = ()) -> str | None:
    """Give this rank its generators back.

    Args:
        training: The job, its counters already restored.
        states: The saved state of each rank, in rank order.
        omitted: Parts that a planted defect leaves out.

    Returns:
        A warning if the generators could not be continued and were seeded afresh, else None.
    """
    world, config = training.world, training.config
    if "rng" in omitted:
        return None
    if config.rng_scope == "global":
        restore_rng_state(states[0])
        return None
    if len(states) == world.world_size:
        restore_rng_state(states[world.rank])
        return None
    # Streams of 4 ranks cannot be continued by 2. Fresh ones, the same whenever this resume is repeated, and apart
    # from each other and from those of every other step.
    seed_everything(derive_seed(config.seed, training.state.step, world.rank))
    return (
        f"saved by {len(states)} ranks, resumed by {world.world_size}: generators seeded afresh from "
        f"(seed {config.seed}, step {training.state.step}, rank); --rng-scope global would have continued them"
    )
