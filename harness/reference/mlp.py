"""A small MLP with BatchNorm: a model with buffers, which are state that no optimizer knows of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.reference.data import SEQUENCE_LENGTH, VOCABULARY
from harness.reference.dropout import RowDropout
from harness.reference.rng import RowDraws


class MiniMLP(nn.Module):
    """Predicts the last token of a sequence from those before it.

    Its losses depend on the number of ranks: each rank's BatchNorm sees that rank's samples only.

    Args:
        width: Size of the embedding of a token.
        dropout: Dropout probability.
        draws: Source of dropout masks and input noise.
    """

    def __init__(self, width: int, dropout: float, draws: RowDraws) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(SEQUENCE_LENGTH * width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.dropout = RowDropout(dropout, draws)
        self.head = nn.Linear(2 * width, VOCABULARY)
        self.draws = draws

    def forward(self, tokens: Tensor, noise_amplitude: float) -> Tensor:
        """Predict the token after the last one.

        Args:
            tokens: (batch, time) int64.
            noise_amplitude: Standard deviation of the noise added to the embeddings; 0 draws nothing.

        Returns:
            Logits, (batch, 1, vocabulary).
        """
        hidden = self.embedding(tokens)
        if self.training and noise_amplitude > 0.0:
            hidden = hidden + noise_amplitude * self.draws.normal(hidden.shape, hidden.device)
        hidden = torch.nn.functional.gelu(self.norm(self.hidden(hidden.flatten(1))))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits.unsqueeze(1)
