"""An exponential moving average of the weights, which evaluation uses; a part of the state that is easily forgotten.

It is no parameter and no buffer, so no `state_dict` of model or optimizer holds it. After a resume without it the
average starts again from the present weights: the training loss is the same to the last bit, the evaluation is not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WeightAverage:
    """Follows the parameters of a model: average = decay · average + (1 - decay) · weight, once a completed step.

    Args:
        model: The bare module; its parameters may be split over ranks, and so is the average then.
        decay: How much of the average stays at each step, in (0, 1).

    Raises:
        ValueError: The decay is out of range.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise ValueError(f"decay must lie between 0 and 1, found {decay}")
        self.decay = decay
        self._parameters = dict(model.named_parameters())
        self.tensors: dict[str, Tensor] = {n: p.detach().clone() for n, p in self._parameters.items()}

    def update(self) -> None:
        """Move the average towards the present weights."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self.tensors[name].lerp_(parameter.detach(), 1.0 - self.decay)
