"""Planner figures: what a training job needs in memory, on disk and in time, before it is started.

Pure functions of a few numbers, without torch. Bytes are bytes (GB is 10^9 of them), times are seconds. Each says its
formula and where it comes from; all are estimates of the main terms, none replaces a measurement.

Sources:
- Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174: segments of sqrt(n) layers.
- Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198: activations
  of a transformer layer, full and selective recompute.
- Micikevicius et al. 2018, "Mixed Precision Training", arXiv:1710.03740: weights of 16 bits, a master copy of 32.
- Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: 16 bytes per parameter, and the optimizer states divided by ranks.
"""

from __future__ import annotations

import math

BF16_BYTES = 2
FP32_BYTES = 4
# A layer keeps for its backward pass, in units of B*L*d values: its input, the first norm's output, queries, keys,
# values, the attention's output, the sum after the attention, the second norm's output: 8; the MLP's hidden layer: 4.
ACTIVATIONS_PER_LAYER = 12
MASTER_AND_MOMENTS_BYTES = 3 * FP32_BYTES
RESUME_BYTES = BF16_BYTES + MASTER_AND_MOMENTS_BYTES
EXPORT_BYTES = BF16_BYTES
TRAINING_BYTES = RESUME_BYTES + BF16_BYTES
DEFAULT_SEGMENT_LENGTH = 4
SELECTIVE_FRACTION = 0.15


def activation_bytes_per_layer(batch: int, length: int, width: int, bytes_per_value: int = BF16_BYTES) -> int:
    """Return the bytes of activations that one transformer layer keeps for its backward pass: about 12*B*L*d values.

    The count stands above `ACTIVATIONS_PER_LAYER`. It holds where the attention keeps no L*L matrix (a fused kernel), there
    is no dropout, and the MLP of width 4*d keeps one of its two hidden tensors.

    Args:
        batch: Sequences per rank, B.
        length: Tokens per sequence, L.
        width: Width of the model, d.
        bytes_per_value: 2 for BF16 and FP16, 4 for FP32.

    Raises:
        ValueError: An argument is not a whole number of at least 1.

    Source:
        The method of counting of Korthikanti et al. 2022, section 4.1, where a layer with dropout and without a fused
        attention comes to 34*B*L*d bytes and the L*L terms.
    """
    return (
        ACTIVATIONS_PER_LAYER
        * _count("batch", batch)
        * _count("length", length)
        * _count("width", width)
        * _count("bytes_per_value", bytes_per_value)
    )


def activation_bytes(layers: int, batch: int, length: int, width: int, bytes_per_value: int = BF16_BYTES) -> int:
    """Return the bytes of activations of all layers, none recomputed: layers * 12*B*L*d values.

    Args:
        layers: Number of layers.
        batch: See `activation_bytes_per_layer`, as the others.
        length: Tokens per sequence.
        width: Width of the model.
        bytes_per_value: 2 for BF16.

    Raises:
        ValueError: An argument is not a whole number of at least 1.

    Source:
        As `activation_bytes_per_layer`.
    """
    return _count("layers", layers) * activation_bytes_per_layer(batch, length, width, bytes_per_value)


def recompute_overhead(forward_fraction: float) -> float:
    """Return the extra work of activation checkpointing, as a fraction of a step without it: forward_fraction / 3.

    A step is 3 units of work, 1 forward and 2 backward. Full recompute does the whole forward pass again, 4 units for 3,
    about 33 % more; selective recompute, which does the attention again (`SELECTIVE_FRACTION`), about 5 % more.

    Args:
        forward_fraction: How much of the forward pass is done twice, 0 to 1.

    Raises:
        ValueError: The fraction is not a number from 0 to 1.

    Source:
        Chen et al. 2016, section 4 (one more forward pass); Korthikanti et al. 2022, section 5 (selective).
    """
    if not _is_number(forward_fraction) or not 0.0 <= forward_fraction <= 1.0:
        raise ValueError(f"forward_fraction must be from 0 to 1, found {forward_fraction!r}")
    return forward_fraction / 3.0


def best_segment_length(layers: int) -> int:
    """Return the layers per segment with which activation checkpointing keeps the least: sqrt(layers), rounded.

    With segments of k layers, the inputs of ceil(layers / k) segments are kept, and during the backward pass the k layers
    of one segment; the sum is least at k = sqrt(layers), where both are equal: 8 segments of 8 layers for 64.

    Args:
        layers: Number of layers.

    Raises:
        ValueError: It is not a whole number of at least 1.

    Source:
        Chen et al. 2016, section 4.
    """
    return round(math.sqrt(_count("layers", layers)))


def num_segments(layers: int, segment_length: int = DEFAULT_SEGMENT_LENGTH) -> int:
    """Return the number of segments, ceil(layers / segment_length); the last one may be shorter.

    Args:
        layers: Number of layers.
        segment_length: Layers per segment; where nothing was computed, 4.

    Raises:
        ValueError: An argument is not a whole number of at least 1.

    Source:
        Counting.
    """
    return -(-_count("layers", layers) // _count("segment_length", segment_length))


def resume_bytes(parameters: int) -> int:
    """Return the bytes of a checkpoint that training can resume from: 14 per parameter.

    BF16 weight 2, FP32 master weight 4, the two FP32 moments of Adam 4 + 4.

    Args:
        parameters: Number of trained parameters.

    Raises:
        ValueError: It is not a whole number of at least 1.

    Source:
        Rajbhandari et al. 2020, section 3.1, less the gradients; Micikevicius et al. 2018, section 3.1 (the master copy).
    """
    return RESUME_BYTES * _count("parameters", parameters)


def export_bytes(parameters: int) -> int:
    """Return the bytes of an export for inference, the BF16 weights alone: 2 per parameter.

    Args:
        parameters: Number of parameters.

    Raises:
        ValueError: It is not a whole number of at least 1.

    Source:
        The size of a BF16 value.
    """
    return EXPORT_BYTES * _count("parameters", parameters)


def training_bytes(parameters: int) -> int:
    """Return the bytes in memory during training, without activations: 16 per parameter.

    The 14 of `resume_bytes` and a BF16 gradient of 2.

    Args:
        parameters: Number of trained parameters.

    Raises:
        ValueError: It is not a whole number of at least 1.

    Source:
        Rajbhandari et al. 2020, section 3.1.
    """
    return TRAINING_BYTES * _count("parameters", parameters)


def zero1_optimizer_bytes(parameters: int, ranks: int) -> int:
    """Return the bytes of optimizer state per rank under ZeRO-1, about 12*P/N; exactly 12*ceil(P/N), padding included.

    Master weight and two moments, 4 bytes each, of the rank's part of the parameters.

    Args:
        parameters: Number of trained parameters, P.
        ranks: Ranks that share them, N.

    Raises:
        ValueError: An argument is not a whole number of at least 1.

    Source:
        Rajbhandari et al. 2020, section 5.1 (K = 12).
    """
    return MASTER_AND_MOMENTS_BYTES * -(-_count("parameters", parameters) // _count("ranks", ranks))


def write_s(size_bytes: float, writers: int, writer_bytes_per_s: float, aggregate_bytes_per_s: float | None = None) -> float:
    """Return the seconds that it takes to write a checkpoint: size / min(writers * bandwidth of one, aggregate limit).

    What takes 4 hours on one writer takes about 4 minutes (225 s) on 64, as long as the storage keeps up with all of
    them; from the aggregate limit on, more writers are no faster.

    Args:
        size_bytes: Size of the checkpoint, evenly shared.
        writers: Ranks that write at the same time.
        writer_bytes_per_s: What one of them can write.
        aggregate_bytes_per_s: What the storage can take from all together, or None for no limit.

    Raises:
        ValueError: A size or bandwidth is not positive and finite, or `writers` is not a whole number of at least 1.

    Source:
        Division; the limit is that of the storage's specification or of a measurement.
    """
    bandwidth = _count("writers", writers) * _positive("writer_bytes_per_s", writer_bytes_per_s)
    if aggregate_bytes_per_s is not None:
        bandwidth = min(bandwidth, _positive("aggregate_bytes_per_s", aggregate_bytes_per_s))
    return _positive("size_bytes", size_bytes) / bandwidth


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, found {value!r}")
    return value


def _positive(name: str, value: float) -> float:
    if not _is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, found {value!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
