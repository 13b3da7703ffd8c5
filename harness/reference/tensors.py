"""Every tensor of a training job by its name, and which part of it this rank holds.

The one picture that all checkpoint formats share, whatever splits the job over its ranks: a tensor has a name and a shape
that do not depend on the number of ranks (`model.head.weight`, `optimizer.head.weight.exp_avg`, `ema.head.weight`), and a
rank holds a run of its elements in row-major order: all of them (DDP), some rows (FSDP2), or any stretch (ZeRO-1). A
checkpoint that records names and stretches can be put together again on any number of ranks, and for any of the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from harness.reference.comm import gather_values
from harness.reference.errors import CheckpointError
from harness.reference.zero1 import ShardedAdamW

if TYPE_CHECKING:
    from harness.reference.state import Training


@dataclass(frozen=True)
class LocalTensor:
    """This rank's part of a named tensor.

    Attributes:
        shape: Of the whole tensor.
        start: Number of the first element held here, counted in row-major order.
        values: The elements, 1-D: a view of the live storage, so that writing to it changes the job.
        is_split: Whether the other ranks hold other elements; else every rank holds all. A small tensor may be split and
            lie entirely on one rank.
    """

    shape: tuple[int, ...]
    start: int
    values: Tensor
    is_split: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds all elements."""
        return self.values.numel() == torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Piece:
    """A run of elements of a named tensor, as it is written to a file; `values` is 1-D."""

    name: str
    start: int
    values: Tensor


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


def live_tensors(training: Training) -> dict[str, LocalTensor]:
    """Return every tensor of the job by name: weights and buffers, the optimizer's, the average's.

    The optimizer's are keyed by the *name* of the parameter. `Optimizer.state_dict` numbers the parameters in the order
    in which they were passed; after a change of that order it gives every parameter its neighbour's moments, in silence
    where the shapes agree.
    """
    found = {f"model.{name}": local_part(tensor) for name, tensor in training.model.state_dict().items()}
    found |= optimizer_tensors(training.model, training.optimizer)
    if training.ema is not None:
        found |= {f"ema.{name}": local_part(tensor) for name, tensor in training.ema.tensors.items()}
    return found


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, LocalTensor]:
    """Return the optimizer's tensors as `optimizer.PARAMETER.KEY`."""
    names = parameter_names(model, optimizer)
    if isinstance(optimizer, ShardedAdamW):
        return {
            f"optimizer.{names[part.parameter]}.{key}": LocalTensor(part.shape, part.start, values, is_split=True)
            for part in optimizer.parts()
            for key, values in part.values.items()
        } | {f"optimizer.{name}.step": local_part(optimizer.step_count) for name in names}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"optimizer.{name}.{key}": local_part(tensor)
        for name, parameter in zip(names, parameters, strict=True)
        for key, tensor in optimizer.state[parameter].items()
    }


def local_part(tensor: Tensor) -> LocalTensor:
    """Return a tensor's part on this rank: all of an ordinary tensor, the local rows of a `DTensor` split by rows."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return LocalTensor(shape, 0, tensor.detach().view(-1))
    rows, mesh = shape[0], tensor.device_mesh
    # As `torch.chunk` splits: every rank but the last ones has ceil(rows / ranks).
    first_row = min(rows, -(-rows // mesh.size()) * mesh.get_local_rank())
    start = first_row * torch.Size(shape[1:]).numel()
    return LocalTensor(shape, start, tensor.to_local().detach().view(-1), is_split=True)


def own_pieces(tensors: dict[str, LocalTensor], rank: int, world_size: int) -> list[Piece]:
    """Return what this rank writes, so that all ranks together write every element once.

    Parts are written by the rank that holds them. What every rank holds entirely is dealt out: laid end to end in name
    order, rank r takes the r-th of world_size equal shares.
    """
    partial = _partial_names(tensors)
    pieces = [Piece(name, tensors[name].start, tensors[name].values) for name in partial if tensors[name].values.numel()]
    whole = [name for name in sorted(tensors) if name not in partial]
    first, numel = share_of(sum(tensors[name].values.numel() for name in whole), rank, world_size)
    end = 0
    for name in whole:
        values = tensors[name].values
        begin, end = end, end + values.numel()
        low, high = max(first, begin), min(first + numel, end)
        if low < high:
            pieces.append(Piece(name, low - begin, values[low - begin : high - begin]))
    return pieces


def share_of(numel: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return (offset, numel) of a rank's share of a vector; shares differ by at most one element."""
    first, last = numel * rank // world_size, numel * (rank + 1) // world_size
    return first, last - first


def _partial_names(tensors: dict[str, LocalTensor]) -> list[str]:
    """The tensors that are split over the ranks, in name order: the same on every rank.

    A small tensor may lie entirely on one rank, which could then not tell it from one that every rank holds; so the
    ranks ask each other.
    """
    names = {name for ranks in gather_values([n for n, t in tensors.items() if not t.is_whole]) for name in ranks}
    return sorted(names)


class Filler:
    """Writes pieces into the live tensors of this rank, and knows what is still missing.

    Args:
        tensors: The live tensors by name.
        path: The checkpoint, for the text of errors.
    """

    def __init__(self, tensors: dict[str, LocalTensor], path: object) -> None:
        self._tensors = tensors
        self._path = path
        self._missing = {name: tensor.values.numel() for name, tensor in tensors.items()}

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Copy what these pieces and this rank's tensors have in common; names unknown here are passed over."""
        for piece in pieces:
            target = self._tensors.get(piece.name)
            if target is None:
                continue
            low = max(piece.start, target.start)
            high = min(piece.start + piece.values.numel(), target.start + target.values.numel())
            if low < high:
                target.values[low - target.start : high - target.start].copy_(
                    piece.values[low - piece.start : high - piece.start]
                )
                self._missing[piece.name] -= high - low

    def finish(self) -> None:
        """Raise `CheckpointError` unless every element of every tensor was filled exactly once."""
        wrong = sorted(name for name, count in self._missing.items() if count)
        if wrong:
            counts = ", ".join(f"{name} by {self._missing[name]}" for name in wrong[:5])
            raise CheckpointError(
                f"wrong slice: {self._path}: expected every element once, found short (or over, below 0): {counts}"
            )


def check_layout(expected: dict[str, LocalTensor], found: dict[str, tuple[int, ...]], path: object) -> None:
    """Compare names and shapes with those of a checkpoint, before anything is changed.

    Raises:
        CheckpointError: A tensor is missing or unexpected, or a shape differs; the text names each.
    """
    problems = [f"no {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"unexpected {name}" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name} of shape {found[name]} instead of {expected[name].shape}"
        for name in sorted(expected.keys() & found.keys())
        if expected[name].shape != found[name]
    ]
    if problems:
        raise CheckpointError(f"tensors differ: {path}: expected the {len(expected)} of this job, found {', '.join(problems)}")


def gather_whole(tensors: dict[str, LocalTensor]) -> dict[str, Tensor]:
    """Put the whole tensors together on rank 0, for formats with one writer. Collective.

    Returns:
        Name → whole tensor on the CPU; the live tensor itself where this rank holds it all on the CPU already. Empty on
        the other ranks.
    """
    partial = set(_partial_names(tensors))
    first = not dist.is_initialized() or dist.get_rank() == 0
    whole = {n: t.values.view(t.shape).cpu() for n, t in tensors.items() if n not in partial} if first else {}
    for dtype in sorted({tensors[name].values.dtype for name in partial}, key=str):
        names = sorted(name for name in partial if tensors[name].values.dtype == dtype)
        for name, start, values in _gather_parts(names, tensors, dtype):
            shape = tensors[name].shape
            target = whole.setdefault(name, torch.empty(shape, dtype=dtype))
            target.view(-1)[start : start + values.numel()] = values
    return whole


def _gather_parts(names: list[str], tensors: dict[str, LocalTensor], dtype: torch.dtype) -> Iterator[tuple[str, int, Tensor]]:
    """Yield (name, start, values) of every rank's parts on rank 0: one exchange, padded to the longest."""
    layouts = gather_values([(name, tensors[name].start, tensors[name].values.numel()) for name in names])
    longest = max(sum(numel for _, _, numel in layout) for layout in layouts)
    own = torch.zeros(longest, dtype=dtype)
    flat = torch.cat([tensors[name].values.cpu() for name in names])
    own[: flat.numel()] = flat
    first = dist.get_rank() == 0
    received = [torch.empty_like(own) for _ in layouts] if first else None
    dist.gather(own, received)
    for layout, values in zip(layouts, received or (), strict=bool(first)):
        end = 0
        for name, start, numel in layout:
            yield name, start, values[end : end + numel]
            end += numel


def group_options(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the options of each parameter group (learning rate, betas, …), with `params` as a list of names."""
    names = iter(parameter_names(model, optimizer))
    return [{**group, "params": [next(names) for _ in group["params"]]} for group in optimizer.param_groups]


def load_group_options(model: nn.Module, optimizer: Optimizer, saved: list[dict[str, Any]], path: object) -> None:
    """Put back what `group_options` returned, whatever the order of the parameters is now.

    Raises:
        CheckpointError: The groups do not hold the same parameters.
    """
    current = group_options(model, optimizer)
    expected = [sorted(group["params"]) for group in current]
    found = [sorted(group["params"]) for group in saved]
    if expected != found:
        raise CheckpointError(f"optimizer parameters differ: {path}: expected {expected}, found {found}")
    for group, options in zip(optimizer.param_groups, saved, strict=True):
        group.update({key: value for key, value in options.items() if key != "params"})
