"""The command line of the reference trainer: every option, its check, and one error text with all problems in it."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.reference.defects import check_defects
from harness.reference.formats import FORMAT_MODULES
from harness.reference.recompute import MODES
from harness.reference.world import World

PARALLELISMS = ("ddp", "zero1", "fsdp2")


@dataclass(frozen=True)
class TrainConfig:
    """What one training job is; see `_OPTIONS` for the meaning and the unit of each value."""

    out: Path = Path("checkpoints")
    format: str = "single"
    steps: int = 24
    save_every: int = 4
    keep_last: int = 3
    batches_per_epoch: int = 12
    global_batch: int = 12
    dropout: float = 0.1
    rng_scope: str = "rank"
    precision: str = "fp32"
    learning_rate: float = 2e-3
    warmup: int = 4
    seed: int = 0
    on_save_error: str = "fail"
    reshard: bool = False
    collective_timeout_s: float = 30.0
    device: str = "cpu"
    init_method: str = "env://"
    model: str = "gpt"
    width: int = 32
    parallelism: str = "ddp"
    sampler: str = "distributed"
    workers: int = 0
    accumulate: int = 1
    recompute: str = "none"
    ema: float = 0.0
    noise: float = 0.1
    activation_limit: int = 0
    on_loss_jump: str = "ignore"
    defect: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Option:
    name: str
    convert: Callable[[str], Any]
    text: str
    choices: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf


_OPTIONS = (
    _Option("out", Path, "directory of the checkpoints"),
    _Option("format", str, "how a checkpoint is stored", choices=tuple(FORMAT_MODULES)),
    _Option("steps", int, "batches planned for the whole job; with no skipped batch equal to its steps", minimum=1),
    _Option("save-every", int, "save after each batch whose number is a multiple, and after the last", minimum=1),
    _Option("keep-last", int, "checkpoints kept by rotation", minimum=1),
    _Option("batches-per-epoch", int, "length of an epoch, in batches", minimum=1),
    _Option("global-batch", int, "samples in a batch, over all ranks", minimum=1),
    _Option("dropout", float, "dropout probability", minimum=0.0, maximum=0.99),
    _Option("rng-scope", str, "one random stream per rank, or one that all share", choices=("rank", "global")),
    _Option("precision", str, "arithmetic of the forward pass", choices=("fp32", "bf16", "fp16")),
    _Option("learning-rate", float, "learning rate at the end of the warm-up", minimum=0.0, maximum=1e3),
    _Option("warmup", int, "steps of linear warm-up", minimum=0),
    _Option("seed", int, "seed of weights, data, order and noise", minimum=0, maximum=2**31),
    _Option("on-save-error", str, "what a failed save does to the job", choices=("fail", "continue")),
    _Option("collective-timeout-s", float, "seconds a collective waits for its peers", minimum=0.1, maximum=86_400.0),
    _Option("device", str, "where to train", choices=("cpu", "cuda")),
    _Option("init-method", str, "how ranks find each other: env:// or file:///path"),
    _Option("model", str, "what to train", choices=("gpt", "mlp")),
    _Option("width", int, "width of the model, a multiple of 4", minimum=4, maximum=16_384),
    _Option("parallelism", str, "how the job is spread over the ranks", choices=PARALLELISMS),
    _Option("sampler", str, "where the data order comes from", choices=("distributed", "random")),
    _Option("workers", int, "processes that load data, per rank", minimum=0, maximum=16),
    _Option("accumulate", int, "micro-batches in a batch", minimum=1),
    _Option("recompute", str, "which activations are computed again in the backward pass", choices=MODES),
    _Option("ema", float, "decay of the average of the weights, 0 for none", minimum=0.0, maximum=0.9999),
    _Option("noise", float, "largest standard deviation of the noise on the embeddings", minimum=0.0),
    _Option("activation-limit", int, "bytes that a forward pass may keep for the backward pass, 0 for any", minimum=0),
    _Option("on-loss-jump", str, "what a loss of more than twice the usual one does", choices=("ignore", "rollback")),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        # argparse would print and exit at the first problem; the caller wants them all in one error.
        raise ValueError(message)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser. Values stay text: `parse_config` converts them, so that it can report every problem at once."""
    parser = _Parser(
        prog="python -m harness.reference.train",
        description="Train the reference model, save checkpoints, resume from the newest valid one.",
        epilog="Example: torchrun --nproc-per-node 2 -m harness.reference.train --format sharded --out /tmp/job",
    )
    defaults = TrainConfig()
    for option in _OPTIONS:
        default = getattr(defaults, option.name.replace("-", "_"))
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        parser.add_argument(f"--{option.name}", metavar="VALUE", help=f"{option.text}{choices}; default {default}")
    parser.add_argument(
        "--reshard",
        action="store_true",
        help=("let --format sharded resume on another world size; the other formats always can, and take it as said already"),
    )
    parser.add_argument("--defect", action="append", default=[], metavar="NAME", help="plant a defect (defects.py)")
    return parser


def parse_config(arguments: Sequence[str]) -> TrainConfig:
    """Read a command line.

    Args:
        arguments: Without the program name.

    Raises:
        ValueError: The command line is wrong; the text names every problem.
        SystemExit: `--help` was asked for.
    """
    found, unknown = build_parser().parse_known_args(list(arguments))
    problems = [f"unknown argument {argument}" for argument in unknown]
    values: dict[str, Any] = {"reshard": found.reshard, "defect": tuple(found.defect)}
    for option in _OPTIONS:
        key = option.name.replace("-", "_")
        text = getattr(found, key)
        if text is not None:
            values[key] = _convert(option, text, problems)
    problems += check_defects(values["defect"], str(values.get("format", "single")))
    if isinstance(values.get("width"), int) and values["width"] % 4:
        problems.append(f"--width must be a multiple of 4 (attention heads), found {values['width']}")
    method = str(values.get("init_method", "env://"))
    if not method.startswith(("env://", "file:///", "tcp://")):
        problems.append(f"--init-method must be env://, file:///PATH or tcp://HOST:PORT, found {method!r}")
    elif method.startswith("file:///") and not Path(method.removeprefix("file://")).parent.is_dir():
        problems.append(
            f"--init-method: the directory of {method.removeprefix('file://')} does not exist, so no rank can meet there"
        )
    problems += _out_problems("checkpoints" if found.out is None else found.out)
    if values.get("model") == "mlp" and values.get("recompute", "none") != "none":
        problems.append(f"--recompute {values['recompute']} needs --model gpt: the MLP has no layers to compute again")
    if problems:
        raise ValueError("; ".join(problems))
    return TrainConfig(**values)


def _out_problems(text: str) -> list[str]:
    """What is wrong with the directory of the checkpoints: found now, and not at the first save."""
    if not text:
        return ["--out needs a directory, found '' (the present one is .)"]
    place = next((p for p in (Path(text), *Path(text).parents) if os.path.lexists(p)), Path())
    if place.is_dir():
        return []
    return [f"--out {text}: expected a directory or a place to make one in, found {place}, which is none"]


def _convert(option: _Option, text: str, problems: list[str]) -> Any:
    try:
        value = option.convert(text)
    except ValueError:
        problems.append(f"--{option.name} needs {option.convert.__name__}, found {text!r}")
        return None
    if option.choices and value not in option.choices:
        problems.append(f"--{option.name} must be one of {', '.join(option.choices)}, found {text!r}")
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(f"--{option.name} must be a finite number, found {text}")
    elif isinstance(value, (int, float)) and not option.minimum <= value <= option.maximum:
        problems.append(f"--{option.name} must lie within {option.minimum} … {option.maximum}, found {text}")
    return value


def check_world(config: TrainConfig, world: World) -> None:
    """Check a configuration against the number of ranks.

    Raises:
        ValueError: The global batch cannot be shared out evenly. Uneven shares would make the mean of the ranks' mean
            losses differ from the mean over the samples, so the job would change with the number of ranks.
    """
    if config.global_batch % (world.world_size * config.accumulate):
        micro = "" if config.accumulate == 1 else f" in {config.accumulate} micro-batches"
        divisor = "the world size" if config.accumulate == 1 else "world size times --accumulate"
        raise ValueError(
            f"--global-batch {config.global_batch} cannot be shared by {world.world_size} ranks{micro}: expected a multiple of "
            f"{divisor}, remainder {config.global_batch % (world.world_size * config.accumulate)}"
        )
