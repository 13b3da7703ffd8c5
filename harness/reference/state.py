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
from harness.reference.ema import WeightAverage
from harness.reference.errors import CheckpointError
from harness.reference.rng import capture_rng_state, derive_seed, restore_rng_state, seed_everything
from harness.reference.skips import AmpTrainState
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
        epoch_order: State of the generator of the data order at the start of the epoch, uint8; None for an order that is
            a function of seed and epoch only.
        amp: Which of the last batches were skipped.
    """

    batch: int = 0
    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    loss_history: list[float] = field(default_factory=list)
    epoch_order: Tensor | None = None
    amp: AmpTrainState = field(default_factory=AmpTrainState)


@dataclass
class Training:
    """The live objects of one rank.

    Attributes:
        config: The job.
        world: This rank's place in it.
        model: The bare module: its parameter names are the same with and without DDP, on any number of ranks.
        wrapped: What the loop calls: the module inside DDP, or itself on one rank.
        optimizer: AdamW over the parameters, or its sharded form.
        scheduler: Its learning rate.
        scaler: Loss scaling, in float16 only.
        state: The counters.
        device: Where the model lives.
        noise: The generator of the input noise: state of its own, beside the global generators.
        ema: The average of the weights, if there is one.
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
    noise: torch.Generator
    ema: WeightAverage | None = None


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
        "schema": "v1" if "odd-schema" in config.defect else CHECKPOINT_SCHEMA,
        "world_size": training.world.world_size,
        "state": {"batch": state.batch, "step": state.step, "loss_history": list(state.loss_history)},
        "data": {
            "epoch": state.epoch,
            "batch_in_epoch": state.batch_in_epoch,
            "sampler_seed": config.seed,
            "epoch_order": state.epoch_order,
        },
        "amp": state.amp.state_dict(),
        "job": job_identity(config),
        "scheduler": training.scheduler.state_dict(),
        "scaler": None if training.scaler is None else training.scaler.state_dict(),
    }


def job_identity(config: TrainConfig) -> dict[str, Any]:
    """Return the options that decide numbers, data order and random draws: with others, a resume is not a resume.

    Left out are those that a job may be given anew (how often it saves, on how many ranks and how it is split, what it does
    about a jump of the loss), those that decide the tensors' names and shapes, which are compared themselves, and `steps`: a
    longer schedule is a decision that people take on purpose.
    """
    return {
        "seed": config.seed,
        "rng_scope": config.rng_scope,
        "global_batch": config.global_batch,
        "batches_per_epoch": config.batches_per_epoch,
        "precision": config.precision,
        "model": config.model,
        "sampler": config.sampler,
        "accumulate": config.accumulate,
        "dropout": config.dropout,
        "noise": config.noise,
        "learning_rate": config.learning_rate,
        "warmup": config.warmup,
        "ema": config.ema,
    }


def check_job(config: TrainConfig, saved: dict[str, Any], path: object) -> None:
    """Compare a job's options with those of the job that saved.

    What the checkpoint says nothing of is not compared: older versions saved fewer options.

    Raises:
        CheckpointError: One differs, or the checkpoint names one that this version does not have; the text names each.
    """
    own = job_identity(config)
    problems = [
        f"--{name.replace('_', '-')} expected {value!r} (saved with), found {own.get(name, 'no such option')!r} (started with)"
        for name, value in saved.items()
        if name not in own or own[name] != value
    ]
    if problems:
        what = "; ".join(problems)
        raise CheckpointError(f"other job: {path}: {what}; start it as it was saved, or with an --out of its own")


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
    check_job(training.config, small["job"], path)
    counters, data, state = small["state"], small["data"], training.state
    state.batch, state.step = counters["batch"], counters["step"]
    if "loss-history" not in omitted:
        state.loss_history = list(counters["loss_history"])
    if "data" not in omitted:
        state.epoch, state.batch_in_epoch = data["epoch"], data["batch_in_epoch"]
    if not {"data", "epoch-order"} & set(omitted):
        state.epoch_order = data["epoch_order"]
    state.amp.load_state_dict(small["amp"])
    if "scheduler" not in omitted:
        training.scheduler.load_state_dict(small["scheduler"])
    if training.scaler is not None and "scaler" not in omitted:
        training.scaler.load_state_dict(small["scaler"])


def check_schema(schema: object, path: object) -> None:
    """Raise `CheckpointError` unless the schema is one that this loader knows."""
    if schema != CHECKPOINT_SCHEMA:
        raise CheckpointError(f"unknown schema: {path}: expected {CHECKPOINT_SCHEMA}, found {schema!r}")


def capture_rank_rng(training: Training) -> dict[str, Any]:
    """Return the state of every generator of this rank: the global ones, and the job's own."""
    return {**capture_rng_state(), "noise": training.noise.get_state()}


def apply_rng_states(training: Training, states: list[dict[str, Any]], omitted: Collection[str] = ()) -> str | None:
    """Give this rank its generators back.

    Args:
        training: The job, its counters already restored.
        states: The saved state of each rank, in rank order.
        omitted: Parts that a planted defect leaves out.

    Returns:
        A warning if some generators could not be continued and were seeded afresh, else None.

    Raises:
        CheckpointError: This machine has fewer GPUs than there are saved generators.
    """
    world, config = training.world, training.config
    if "rng" in omitted:
        return None
    if config.rng_scope == "global" or len(states) == world.world_size:
        saved = states[0 if config.rng_scope == "global" else world.rank]
        warning = None
        if (training.device.type == "cuda") != bool(saved["cuda"]):
            saved, warning = _over_devices(training, saved)
        try:
            restore_rng_state(saved, omitted)
        except ValueError as error:
            raise CheckpointError(f"cannot restore the generators of rank {world.rank}: {error}") from error
        if "rng.noise" not in omitted:
            training.noise.set_state(saved["noise"].cpu())
        return warning
    # Streams of 4 ranks cannot be continued by 2. Fresh ones, the same whenever this resume is repeated, and apart
    # from each other and from those of every other step.
    seed = derive_seed(config.seed, training.state.step, world.rank)
    seed_everything(seed)
    training.noise.manual_seed(derive_seed(seed, 1))
    return (
        f"saved by {len(states)} ranks, resumed by {world.world_size}: generators seeded afresh from "
        f"(seed {config.seed}, step {training.state.step}, rank); --rng-scope global would have continued them"
    )


def _over_devices(training: Training, saved: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What can be continued of generators that were saved on another kind of device, and the warning that not all can."""
    config, world = training.config, training.world
    if training.device.type == "cuda":
        # Else it would go on from where the job started, with dropout masks that it has used before.
        own = 0 if config.rng_scope == "global" else world.rank
        torch.cuda.manual_seed_all(derive_seed(config.seed, training.state.step, own))
        return saved, f"saved on the CPU, resumed on {training.device}: the GPU's generator is seeded afresh"
    # To restore them would start CUDA in a job that does not use it.
    return {**saved, "cuda": []}, "saved on a GPU, resumed on the CPU: what the GPU's generator drew comes from another one now"
