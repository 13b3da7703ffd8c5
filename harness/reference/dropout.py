"""Dropout whose mask belongs to samples, not to ranks."""

from __future__ import annotations

from torch import Tensor, nn

from harness.reference.rng import RowDraws


class RowDropout(nn.Module):
    """Dropout whose mask is drawn row by row (see `RowDraws`), so that it can be the same on any number of ranks.

    Args:
        probability: Chance of a value to be zeroed, in [0, 1).
        draws: Where the masks come from.
    """

    def __init__(self, probability: float, draws: RowDraws) -> None:
        super().__init__()
        self.probability = probability
        self.draws = draws

    def forward(self, values: Tensor) -> Tensor:
        """Zero some values and scale the rest by 1 / (1 - probability); the identity in evaluation mode."""
        if not self.training or self.probability == 0.0:
            return values
        keep = self.draws.uniform(values.shape, values.device) >= self.probability
        return values * (keep.to(values.dtype) / (1.0 - self.probability))
