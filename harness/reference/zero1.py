"""ZeRO stage 1: the optimizer's state is split over the ranks, the model and its gradients are not.

Of P parameters on N ranks each rank keeps a float32 master copy and AdamW's two moments for ceil(P/N) of them: 12 bytes
a parameter, so 12·P/N bytes a rank instead of 12·P. After its step the ranks exchange the new weights.

The split is by elements of the flat vector of all parameters, not by whole parameters: the shares are then equal (to
one element), whatever the sizes of the parameters are.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020, section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

BYTES_PER_PARAMETER = 12


@dataclass(frozen=True)
class Part:
    """The stretch of one parameter whose state this rank keeps.

    Attributes:
        parameter: Number of the parameter in the optimizer's order.
        shape: Of the whole parameter.
        start: First element of the parameter in the stretch, row-major.
        values: `exp_avg` and `exp_avg_sq` of the stretch: 1-D views of the live tensors.
    """

    parameter: int
    shape: tuple[int, ...]
    start: int
    values: dict[str, Tensor]


class ShardedAdamW(Optimizer):
    """AdamW over this rank's share of the flat vector of all parameters.

    Gradients must be equal on all ranks when `step` is called, as DDP makes them. One parameter group.

    Args:
        parameters: The model's, float32, in the same order on every rank.
        rank: This rank.
        world_size: Number of ranks.
        options: Of `AdamW`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rank: int, world_size: int, **options: Any) -> None:
        listed = list(parameters)
        self._master: nn.Parameter | None = None
        super().__init__(listed, dict(options))
        self._share = -(-sum(parameter.numel() for parameter in listed) // world_size)
        self._first = rank * self._share
        self._master = nn.Parameter(self._own_slice([parameter.detach() for parameter in listed]).clone())
        self._inner = AdamW([self._master], fused=True, **options)
        self._inner.state[self._master] = {
            "step": torch.zeros((), dtype=torch.float32, device=self._master.device),
            "exp_avg": torch.zeros_like(self._master.detach()),
            "exp_avg_sq": torch.zeros_like(self._master.detach()),
        }

    @property
    def step_count(self) -> Tensor:
        """Completed steps, a live scalar tensor."""
        return cast("Tensor", self._state()["step"])

    def parts(self) -> list[Part]:
        """Return the stretches of all parameters that this rank keeps the state of; some may be empty."""
        parts, end = [], 0
        state = self._state()
        for number, parameter in enumerate(self._parameters()):
            begin, end = end, end + parameter.numel()
            low = min(max(begin, self._first), end)
            high = max(low, min(end, self._first + self._share))
            own = slice(max(0, low - self._first), max(0, high - self._first))
            values = {key: state[key][own] for key in ("exp_avg", "exp_avg_sq")}
            parts.append(Part(number, tuple(parameter.shape), low - begin, values))
        return parts

    def vectors(self) -> tuple[dict[str, Tensor], int]:
        """Return this rank's share of each moment, live and 1-D, and the length of the whole vector.

        The shares are those that `torch.chunk` would give, which is how a `DTensor` is split.
        """
        state = self._state()
        numel = sum(parameter.numel() for parameter in self._parameters())
        return {key: state[key] for key in ("exp_avg", "exp_avg_sq")}, numel

    def memory_bytes(self) -> int:
        """Bytes of optimizer state on this rank: master weights and both moments."""
        tensors = [self._owned(), self._state()["exp_avg"], self._state()["exp_avg_sq"]]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def adopt_weights(self) -> None:
        """Take the master copy from the model again, after a load has changed the model."""
        with torch.no_grad():
            self._owned().copy_(self._own_slice([parameter.detach() for parameter in self._parameters()]))

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update this rank's share and exchange the new weights. Collective."""
        loss = None if closure is None else closure()
        parameters = self._parameters()
        own = self._owned()
        own.grad = self._own_slice([cast("Tensor", parameter.grad) for parameter in parameters])
        self._inner.param_groups[0].update({k: v for k, v in self.param_groups[0].items() if k != "params"})
        self._inner.step()
        own.grad = None
        self._exchange(parameters)
        return loss

    def _exchange(self, parameters: list[nn.Parameter]) -> None:
        padded = torch.zeros(self._share, dtype=torch.float32, device=self._owned().device)
        padded[: self._owned().numel()] = self._owned().detach()
        shares = [padded]
        if dist.is_initialized():
            shares = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
            dist.all_gather(shares, padded)
        flat = torch.cat(shares)
        end = 0
        with torch.no_grad():
            for parameter in parameters:
                begin, end = end, end + parameter.numel()
                parameter.copy_(flat[begin:end].view_as(parameter))

    def _own_slice(self, tensors: list[Tensor]) -> Tensor:
        """This rank's share of the concatenation of these tensors, without concatenating the rest."""
        pieces, end = [], 0
        for tensor in tensors:
            begin, end = end, end + tensor.numel()
            low, high = max(begin, self._first), min(end, self._first + self._share)
            if low < high:
                pieces.append(tensor.reshape(-1)[low - begin : high - begin])
        return torch.cat(pieces) if pieces else tensors[0].new_empty(0)

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _owned(self) -> nn.Parameter:
        assert self._master is not None
        return self._master

    def _state(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._inner.state[self._owned()])
