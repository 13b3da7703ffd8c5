"""The training job from start to end; `run_job` tells the whole story."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from harness.reference.amp import all_finite, build_scaler, take_step, trained_parameters
from harness.reference.checkpoint import CheckpointStore
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset, shift_tokens
from harness.reference.ddp import wrap_model
from harness.reference.errors import CheckpointError
from harness.reference.formats import load_format
from harness.reference.hooks import BatchReport, TrainingHooks
from harness.reference.model import build_model
from harness.reference.rng import RowDraws, seed_everything
from harness.reference.schedule import build_scheduler
from harness.reference.state import Training, TrainState, create_optimizer_state
from harness.reference.world import World

MAX_NOISE = 0.1
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
    store = CheckpointStore(load_format(config), config.out, config.keep_last)
    resume(training, store, hooks, say)
    train_batches(training, store, hooks, say)
    hooks.state("end", training)
    return training.state


def build_training(config: TrainConfig, world: World) -> Training:
    """Make model, optimizer, schedule and scaler, and seed this rank's generators."""
    device = torch.device(f"cuda:{world.local_rank}" if config.device == "cuda" else "cpu")
    seed_everything(config.seed)  # the same weights on every rank
    draws = RowDraws(world.rank, world.world_size, config.rng_scope == "global")
    model = build_model(config.model, config.width, config.dropout, draws).to(device)
    optimizer = AdamW(model.parameters(), lr=config.learning_rate, fused=True)
    create_optimizer_state(optimizer)
    training = Training(
        config,
        world,
        model,
        wrap_model(model, world.world_size),
        optimizer,
        build_scheduler(optimizer, config.warmup, config.steps),
        build_scaler(config.precision, device.type),
        TrainState(),
        device,
    )
    seed_everything(config.seed + (world.rank if config.rng_scope == "rank" else 0))
    return training


def resume(training: Training, store: CheckpointStore, hooks: TrainingHooks, say: Print) -> None:
    """Load the newest valid checkpoint, if there is one, and say what was done.

    Raises:
        RefusalError: See `CheckpointStore.resume`.
    """
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


def train_batches(training: Training, store: CheckpointStore, hooks: TrainingHooks, say: Print) -> None:
    """Take the batches that are still planned, over as many epochs as that needs.

    Raises:
        CheckpointError: See `save`.
    """
    config, state = training.config, training.state
    dataset = SuccessorDataset(config.batches_per_epoch * config.global_batch, config.seed)
    loader = EpochLoader(dataset, config.global_batch, config.seed, training.world)
    while state.batch < config.steps:
        for indices, tokens in loader.epoch(state.epoch, state.batch_in_epoch):
            report = train_batch(training, hooks, indices, tokens)
            hooks.batch(report)
            say(format_line(report))
            if state.batch % config.save_every == 0 or state.batch == config.steps:
                save(training, store, hooks, say)
            if state.batch == config.steps:
                break


def train_batch(training: Training, hooks: TrainingHooks, indices: Tensor, tokens: Tensor) -> BatchReport:
    """Train on one batch and move the counters on.

    Args:
        training: The job.
        hooks: Who watches.
        indices: This rank's samples, (batch,).
        tokens: Their sequences, (batch, time + 1).
    """
    state, number = training.state, training.state.batch + 1
    noise_amplitude = float(np.random.uniform(0.0, MAX_NOISE))
    tokens = shift_tokens(tokens).to(training.device)
    outcome = take_step(training, tokens, noise_amplitude, lambda logits: hooks.logits(logits, number))
    state.batch = number
    state.batch_in_epoch += 1
    if state.batch_in_epoch == training.config.batches_per_epoch:
        state.epoch, state.batch_in_epoch = state.epoch + 1, 0
    state.loss_history.append(outcome.global_loss)
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
        samples=indices.tolist(),
        parameters_finite=all_finite([parameter.detach() for parameter in trained_parameters(training)]),
    )


def save(training: Training, store: CheckpointStore, hooks: TrainingHooks, say: Print) -> None:
    """Save the job and rotate, or follow `--on-save-error`.

    Raises:
        CheckpointError: The save or the rotation failed, and the job is to fail then.
    """
    step, name = training.state.step, store.name_for(training.state.batch)
    hooks.state("save", training)
    hooks.save_begin(step, name)
    try:
        store.save(training)
    except CheckpointError as error:
        hooks.save_failed(step, name, str(error))
        _fail_or_go_on(training, error, say)
        return
    hooks.save_end(step, name)
    try:
        store.rotate()
    except CheckpointError as error:
        _fail_or_go_on(training, error, say)


def _fail_or_go_on(training: Training, error: CheckpointError, say: Print) -> None:
    if training.config.on_save_error == "fail":
        raise error
    say(f"warning: {error}; training goes on, the next save is due after {training.config.save_every} batches")


def format_line(report: BatchReport) -> str:
    """Return the line that is printed for a batch."""
    scale = "" if report.scale is None else f"  scale {report.scale:g}"
    tag = "STEP" if report.reason is None else f"SKIP {report.reason}"
    return (
        f"batch {report.batch:4d}  step {report.step:4d}  epoch {report.epoch}  loss {report.global_loss:.6f}  "
        f"lr {report.learning_rate:.2e}  norm {report.grad_norm:.3f}{scale}  {tag}"
    )
