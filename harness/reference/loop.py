"""The training job from start to end; `run_job` tells the whole story."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from harness.reference import atomic, planted_resume
from harness.reference.amp import DEFAULT_MAX_NORM, all_finite, build_scaler, take_step, trained_parameters
from harness.reference.checkpoint import CheckpointStore
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset, shift_tokens
from harness.reference.devices import choose_device
from harness.reference.ema import WeightAverage
from harness.reference.formats import load_format
from harness.reference.hooks import BatchReport, TrainingHooks
from harness.reference.model import build_model
from harness.reference.parallel import build_optimizer, wrap_model
from harness.reference.rng import RowDraws, derive_seed, seed_everything
from harness.reference.schedule import build_scheduler
from harness.reference.state import Training, TrainState
from harness.reference.world import World
from harness.reference.zero1 import ShardedAdamW

JUMP_FACTOR = 2.0
JUMP_WINDOW = 4
Print = Callable[[str], None]


def run_job(config: TrainConfig, world: World, hooks: TrainingHooks, say: Print) -> TrainState:
    """Resume or start, train all planned batches, save on the way. Collective.

    Args:
        config: The job.
        world: This rank's place; the process group runs already.
        hooks: Who watches.
        say: Prints a line for people.

    Returns:
        The counters at the end.

    Raises:
        RefusalError: The checkpoints that are there cannot be resumed from.
        CheckpointError: A save failed, and the job is to fail then.
    """
    training = build_training(config, world)
    hooks.built(training)
    atomic.SYNC_FILES = "no-fsync" not in config.defect
    atomic.SYNC_DIRECTORIES = "no-directory-fsync" not in config.defect
    if isinstance(training.optimizer, ShardedAdamW):
        say(f"optimizer state: {training.optimizer.memory_bytes()} bytes per rank, 12 P / N")
    store = CheckpointStore(load_format(config), config.out, config.keep_last)
    resume(training, store, hooks, say)
    train_batches(training, store, hooks, say)
    hooks.state("end", training)
    if (alert := training.state.amp.alert()) is not None:
        say(f"warning: {alert}")
    return training.state


def build_training(config: TrainConfig, world: World) -> Training:
    """Make model, optimizer, schedule and scaler, and seed this rank's generators."""
    device = choose_device(config.device, world)
    seed_everything(config.seed)  # the same weights on every rank
    own_seed = config.seed + (world.rank if config.rng_scope == "rank" else 0)
    noise = torch.Generator().manual_seed(derive_seed(own_seed, 1))
    draws = RowDraws(world.rank, world.world_size, config.rng_scope == "global", noise)
    recompute = "none" if "no-recompute" in config.defect else config.recompute
    model = build_model(config.model, config.width, config.dropout, draws, recompute).to(device)
    wrapped = wrap_model(model, config.parallelism, world, device)
    optimizer = build_optimizer(model, config.parallelism, world, config.learning_rate)
    training = Training(
        config,
        world,
        model,
        wrapped,
        optimizer,
        build_scheduler(optimizer, config.warmup, config.steps),
        build_scaler(config.precision, device.type),
        TrainState(),
        device,
        noise,
        WeightAverage(model, config.ema) if config.ema else None,
    )
    seed_everything(own_seed)
    return training


def resume(training: Training, store: CheckpointStore, hooks: TrainingHooks, say: Print) -> None:
    """Load the newest valid checkpoint, if there is one, and say what was done.

    Raises:
        RefusalError: See `CheckpointStore.resume`.
    """
    hooks.state("start", training)
    resumption = store.resume(training)
    scan = resumption.scan
    for damaged in scan.skipped:
        say(f"passed over {damaged.path}: {damaged.reason}")
    if resumption.warning is not None:
        say(f"warning: {resumption.warning}")
    saved_by = None if scan.header is None else scan.header.world_size
    hooks.resume(training.state.step, None if scan.path is None else scan.path.name, scan.skipped, saved_by)
    if scan.path is not None:
        say(f"resumed from {scan.path} at batch {training.state.batch}, step {training.state.step}")
        hooks.state("load", training)
        planted_resume.after_load(training)


def train_batches(training: Training, store: CheckpointStore, hooks: TrainingHooks, say: Print) -> None:
    """Take the batches that are still planned, over as many epochs as that needs.

    Raises:
        CheckpointError: See `save`.
    """
    config, state = training.config, training.state
    dataset = SuccessorDataset(config.batches_per_epoch * config.global_batch, config.seed)
    loader = EpochLoader(dataset, config, training.world)
    while state.batch < config.steps:
        if state.epoch_order is None:
            state.epoch_order = loader.order_state()
        for indices, tokens in loader.epoch(state.epoch, state.batch_in_epoch, state.epoch_order):
            report = train_batch(training, hooks, indices, tokens)
            if state.batch_in_epoch == 0:
                state.epoch_order = loader.order_state()  # of the epoch that begins now
            hooks.batch(report)
            say(format_line(report))
            store.poll(training, hooks, say)
            # Before the save: one after the jump would be the newest checkpoint, and the way back would lead into it.
            if config.on_loss_jump == "rollback" and loss_jumped(state.loss_history):
                roll_back(training, store, hooks, say)
            if state.batch % config.save_every == 0 or state.batch == config.steps:
                store.save(training, hooks, say)
            if state.batch == config.steps:
                break
    store.finish(training, hooks, say)


def loss_jumped(history: Sequence[float], factor: float = JUMP_FACTOR, window: int = JUMP_WINDOW) -> bool:
    """Return whether the last loss is more than `factor` times the median of those before it.

    Args:
        history: Global mean losses, oldest first.
        factor: How much is a jump.
        window: How many losses before the last one are looked at; with fewer there is no telling.

    Raises:
        ValueError: `factor` is not above 1, or `window` is less than 1.
    """
    if not factor > 1.0 or window < 1:
        raise ValueError(f"factor must be above 1 and window at least 1, found {factor} and {window}")
    before = list(history[-window - 1 : -1])
    return len(before) == window and history[-1] > factor * statistics.median(before)


def roll_back(training: Training, store: CheckpointStore, hooks: TrainingHooks, say: Print) -> None:
    """Take the weights and the optimizer back to the newest checkpoint, and go on with the data after the jump.

    The batches since that checkpoint are left out: with the same weights and the same batches the loss would jump again.
    """
    state = training.state
    position = (state.batch, state.epoch, state.batch_in_epoch, state.epoch_order)
    store.finish(training, hooks, say)
    resumption = store.resume(training)
    state.batch, state.epoch, state.batch_in_epoch, state.epoch_order = position
    state.loss_history.clear()  # the jump must not be seen again
    found = resumption.scan.path
    went = "there is no checkpoint to go back to" if found is None else f"weights of {found}, its later batches left out"
    say(f"loss jumped at batch {state.batch}: {went}")


def train_batch(training: Training, hooks: TrainingHooks, indices: Tensor, tokens: Tensor) -> BatchReport:
    """Train on one batch and move the counters on.

    Args:
        training: The job.
        hooks: Who watches.
        indices: This rank's samples, (batch,).
        tokens: Their sequences, (batch, time + 1).
    """
    state, number = training.state, training.state.batch + 1
    noise_amplitude = float(np.random.uniform(0.0, training.config.noise))
    tokens = shift_tokens(tokens).to(training.device)
    micro_batches = itertools.count(1)
    outcome = take_step(training, tokens, noise_amplitude, lambda logits: hooks.logits(logits, number, next(micro_batches)))
    state.batch = number
    state.batch_in_epoch += 1
    if state.batch_in_epoch == training.config.batches_per_epoch:
        state.epoch, state.batch_in_epoch = state.epoch + 1, 0
    state.loss_history.append(outcome.global_loss)
    state.amp.record(outcome.reason is not None)
    return BatchReport(
        batch=number,
        step=state.step,
        epoch=state.epoch,
        batch_in_epoch=state.batch_in_epoch,
        reason=outcome.reason,
        loss=outcome.loss,
        global_loss=outcome.global_loss,
        learning_rate=outcome.learning_rate,
        scale=outcome.scale,
        grad_norm=outcome.grad_norm,
        max_norm=DEFAULT_MAX_NORM,
        samples=indices.tolist(),
        parameters_finite=all_finite([parameter.detach() for parameter in trained_parameters(training)]),
    )


def format_line(report: BatchReport) -> str:
    """Return the line that is printed for a batch."""
    scale = "" if report.scale is None else f"  scale {report.scale:g}"
    tag = "STEP" if report.reason is None else f"SKIP {report.reason}"
    return (
        f"batch {report.batch:4d}  step {report.step:4d}  epoch {report.epoch}  loss {report.global_loss:.6f}  "
        f"lr {report.learning_rate:.2e}  norm {report.grad_norm:.3f}{scale}  {tag}"
    )
