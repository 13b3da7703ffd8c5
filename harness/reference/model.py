"""The mini GPT: embeddings with input noise, two blocks of attention and MLP with dropout, LayerNorm, separate head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from harness.reference.data import SEQUENCE_LENGTH, VOCABULARY
from harness.reference.rng import RowDraws

NUM_BLOCKS = 2
NUM_HEADS = 4


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


class Block(nn.Module):
    """One transformer block, pre-norm, causal."""

    def __init__(self, width: int, dropout: float, draws: RowDraws) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False))
        self.dropout = RowDropout(dropout, draws)

    def forward(self, hidden: Tensor, causal_mask: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape; `causal_mask` is (time, time), true where not to look."""
        hidden = hidden + self.dropout(self.projection(self._attend(self.norm_attention(hidden), causal_mask)))
        mixed: Tensor = hidden + self.dropout(self.mlp(self.norm_mlp(hidden)))
        return mixed

    def _attend(self, hidden: Tensor, causal_mask: Tensor) -> Tensor:
        batch, time, width = hidden.shape
        head_width = width // NUM_HEADS
        query, key, value = self.qkv(hidden).view(batch, time, 3, NUM_HEADS, head_width).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(head_width)
        weights = scores.masked_fill(causal_mask, -math.inf).softmax(dim=-1)
        attended: Tensor = (weights.to(value.dtype) @ value).transpose(1, 2).reshape(batch, time, width)
        return attended


class MiniGPT(nn.Module):
    """A language model of some ten thousand parameters.

    Args:
        width: Size of the hidden state, a multiple of `NUM_HEADS`.
        dropout: Dropout probability on each residual branch.
        draws: Source of dropout masks and input noise.
    """

    def __init__(self, width: int, dropout: float, draws: RowDraws) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        self.position_embedding = nn.Embedding(SEQUENCE_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, dropout, draws) for _ in range(NUM_BLOCKS))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.draws = draws

    def forward(self, tokens: Tensor, noise_amplitude: float) -> Tensor:
        """Predict the next token at every place.

        Args:
            tokens: (batch, time) int64.
            noise_amplitude: Standard deviation of the noise added to the embeddings; 0 draws nothing.

        Returns:
            Logits, (batch, time, vocabulary).
        """
        time = tokens.shape[1]
        hidden = self.token_embedding(tokens) + self.position_embedding.weight[:time]
        if self.training and noise_amplitude > 0.0:
            hidden = hidden + noise_amplitude * self.draws.normal(hidden.shape, hidden.device)
        # Made here rather than kept as a buffer: DDP would send it from rank 0 before every forward pass.
        causal_mask = torch.ones(time, time, dtype=torch.bool, device=tokens.device).triu(1)
        for block in self.blocks:
            hidden = block(hidden, causal_mask)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def build_model(name: str, width: int, dropout: float, draws: RowDraws) -> nn.Module:
    """Build a model by its name on the command line; weights come from torch's default generator.

    Raises:
        ValueError: Unknown name.
    """
    if name != "gpt":
        raise ValueError(f"unknown model {name!r}, expected gpt")
    return MiniGPT(width, dropout, draws)
