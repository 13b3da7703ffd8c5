"""One training step that survives non-finite numbers, in any precision.

The order is what matters, and each rung has a mistake that is often made beside it:
gradients to None → forward under autocast → loss finite? → scaled backward → unscale → gradients finite? → clip (after
the unscale: clipping scaled gradients clips at the wrong norm) → `scaler.step` → `scaler.update` (also after a skip:
else the scale never comes down and every later batch overflows as well).

A skipped batch changes no weight, moment, learning rate or step count. Whether to skip is agreed between the ranks
before the backward pass and before the update: DDP's backward is a collective, so a rank that left alone would leave
the others waiting.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from harness.reference.accumulation import loss_scaled_for_accum, no_sync_context
from harness.reference.comm import any_rank, mean_over_ranks
from harness.reference.parallel import broadcast_buffers
from harness.reference.recompute import activation_limit
from harness.reference.state import Training

DEFAULT_MAX_NORM = 1.0
GROWTH_INTERVAL = 8
INITIAL_SCALE = 2.0**10
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepOutcome:
    """What became of one batch; the fields are those of `hooks.BatchReport`."""

    reason: str | None
    loss: float
    global_loss: float
    learning_rate: float
    scale: float | None
    grad_norm: float


def build_scaler(precision: str, device: str) -> GradScaler | None:
    """Return a loss scaler for float16, None for the other precisions, whose exponents reach as far as float32's.

    The scale doubles after `GROWTH_INTERVAL` clean steps, often enough to be seen in a job of 24 batches.
    """
    if precision != "fp16":
        return None
    return GradScaler(device, init_scale=INITIAL_SCALE, growth_interval=GROWTH_INTERVAL)


def trained_parameters(training: Training) -> list[Parameter]:
    """Return what the optimizer trains; asking it is cheaper than walking the model's modules in every batch."""
    return [parameter for group in training.optimizer.param_groups for parameter in group["params"]]


def gradients_of(parameters: Iterable[Parameter]) -> list[Tensor]:
    """Return the gradients that exist."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def all_finite(tensors: list[Tensor]) -> bool:
    """Return whether every value is finite: the largest magnitude tells, and it cannot overflow as an L2 norm can.

    Of tensors that are split over the ranks this rank's parts are looked at; it may have no rows of some.
    """
    parts = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    parts = [part for part in parts if part.numel()]
    return not parts or math.isfinite(float(torch.nn.utils.get_total_norm(parts, norm_type=math.inf)))


def has_non_finite_grad(parameters: Iterable[Parameter]) -> bool:
    """Return whether any gradient on any rank holds an infinity or a NaN. Collective; the same answer on each rank."""
    parameters = list(parameters)
    return any_rank(not all_finite(gradients_of(parameters)), parameters[0].device)


def global_l2_norm(parameters: Iterable[Parameter]) -> float:
    """Return the common L2 norm of all gradients, over all ranks' parts of them."""
    return _number(torch.nn.utils.get_total_norm(gradients_of(parameters)))


def amp_dtype(device: str) -> torch.dtype:
    """Return the type to compute in by default: bfloat16 on the CPU, which is slow in float16, and float16 on CUDA."""
    return torch.float16 if device == "cuda" else torch.bfloat16


def _number(norm: Tensor) -> float:
    # The norm of parts that are spread over the ranks: adding them up is a collective.
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def clip_global_l2_norm(parameters: Iterable[Parameter], max_norm: float) -> tuple[float, float]:
    """Scale all gradients down together if their common L2 norm, over all ranks' parts of them, exceeds a limit.

    Args:
        parameters: With unscaled gradients.
        max_norm: The limit.

    Returns:
        The norm before and after.

    Raises:
        ValueError: The limit is not positive.
    """
    if not max_norm > 0.0:
        raise ValueError(f"max_norm must be positive, found {max_norm}")
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm(gradients_of(parameters))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    before = _number(norm)
    return before, min(before, max_norm)


def back_off(scaler: GradScaler | None) -> None:
    """Halve the scale for a loss that was not finite.

    The scaler learns of an overflow from gradients, in `unscale_`. With no backward pass it has seen none, and its
    `update` would leave the scale as it is, so that the next batch would overflow again. Done through its state, which
    also works before its first use and starts the count of clean steps again; the same on every rank, so that the
    scales stay equal.
    """
    if scaler is not None:
        state = scaler.state_dict()
        scaler.load_state_dict({**state, "scale": state["scale"] * state["backoff_factor"], "_growth_tracker": 0})


def take_step(
    training: Training, tokens: Tensor, noise_amplitude: float, change_logits: Callable[[Tensor], Tensor]
) -> StepOutcome:
    """Train on one batch, or skip it. Collective.

    Args:
        training: The job; model, optimizer, scheduler, scaler and `state.step` change, unless the batch is skipped.
        tokens: This rank's sequences, (batch, time + 1) int64; cut into `accumulate` micro-batches of equal size.
        noise_amplitude: Standard deviation of the noise on the embeddings.
        change_logits: Applied to the logits before the loss.
    """
    scaler, optimizer = training.scaler, training.optimizer
    learning_rate = float(optimizer.param_groups[0]["lr"])
    scale = None if scaler is None else scaler.get_scale()
    optimizer.zero_grad(set_to_none=True)
    buffers_before = [buffer.clone() for buffer in training.model.buffers()]
    own_loss, global_loss = accumulate_gradients(training, tokens, noise_amplitude, change_logits)
    defects = training.config.defect
    if skips(training) and not math.isfinite(global_loss):
        if "no-scaler-update" not in defects:
            back_off(scaler)
        restore_buffers(training, buffers_before)
        return StepOutcome("non_finite_loss", own_loss, global_loss, learning_rate, scale, math.nan)
    scaled_norm = None
    if "clip-scaled" in defects:
        scaled_norm, _ = clip_global_l2_norm(trained_parameters(training), DEFAULT_MAX_NORM)
    if scaler is not None:
        scaler.unscale_(optimizer)
    reason = "non_finite_grad" if skips(training) and has_non_finite_grad(trained_parameters(training)) else None
    norm = _update(training, reason is not None)
    if reason is None:
        broadcast_buffers(training.model)
    else:
        restore_buffers(training, buffers_before)
    return StepOutcome(reason, own_loss, global_loss, learning_rate, scale, norm if scaled_norm is None else scaled_norm)


def restore_buffers(training: Training, before: list[Tensor]) -> None:
    """Undo what the forward passes of a skipped batch have done to BatchNorm's statistics: one NaN there is for ever."""
    for buffer, value in zip(training.model.buffers(), before, strict=True):
        buffer.copy_(value)


def skips(training: Training) -> bool:
    """Return whether non-finite numbers are looked for; only a planted defect does not."""
    return "no-skip" not in training.config.defect


def accumulate_gradients(
    training: Training, tokens: Tensor, noise_amplitude: float, change_logits: Callable[[Tensor], Tensor]
) -> tuple[float, float]:
    """Add up the gradients of all micro-batches, with one exchange between the ranks. Collective.

    Returns:
        This rank's loss and the mean over all ranks. If a loss is not finite on some rank, every rank stops there with
        a non-finite mean, and the gradients mean nothing.
    """
    own_loss, global_loss = 0.0, 0.0
    micro_batches = tokens.chunk(training.config.accumulate)
    for number, micro_batch in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else no_sync_context(training.wrapped):
            loss = _forward(training, micro_batch, noise_amplitude, change_logits)
            own_loss += float(loss.detach())
            # Finite if and only if every rank's loss is: this is the agreement.
            global_loss += mean_over_ranks(loss)
            if not math.isfinite(global_loss) and skips(training):
                break
            _backward(training, loss)
    else:
        return own_loss, global_loss
    if number and isinstance(training.wrapped, FSDPModule):
        # What FSDP2 has added up so far waits inside it for the exchange; without one it would go into the next batch.
        _backward(training, loss)
        training.optimizer.zero_grad(set_to_none=True)
    return own_loss, global_loss


def _backward(training: Training, loss: Tensor) -> None:
    (loss if training.scaler is None else training.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]


def _forward(training: Training, tokens: Tensor, noise_amplitude: float, change_logits: Callable[[Tensor], Tensor]) -> Tensor:
    """The loss of a micro-batch, divided by their number."""
    config = training.config
    dtype = _DTYPES.get(config.precision)
    with torch.autocast(training.device.type, dtype=dtype, enabled=dtype is not None), activation_limit(config.activation_limit):
        logits = change_logits(training.wrapped(tokens[:, :-1], noise_amplitude))
    if "fp16-range" in config.defect:
        logits = (logits * 2.0**16).float() / 2.0**16
    targets = tokens[:, -logits.shape[1] :]
    divisor = 1 if "loss-not-divided" in config.defect else config.accumulate
    # The loss in float32: a sum over many float16 values overflows early.
    return loss_scaled_for_accum(logits.float().flatten(0, 1), targets.flatten(), divisor, cross_entropy)


def _update(training: Training, skip: bool) -> float:
    scaler, optimizer, defects = training.scaler, training.optimizer, training.config.defect
    max_norm = math.inf if "no-clip" in defects or "clip-scaled" in defects else DEFAULT_MAX_NORM
    norm, _ = clip_global_l2_norm(trained_parameters(training), max_norm)
    if not skip:
        if scaler is None or not skips(training):
            optimizer.step()
        else:
            scaler.step(optimizer)
        training.scheduler.step()
        training.state.step += 1
        if training.ema is not None:
            training.ema.update()
    if scaler is not None:
        # After a skip too: it halves the scale, on every rank alike, since all have seen the same non-finite gradients.
        scaler.update()
    return norm
