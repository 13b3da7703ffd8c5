"""The mini GPT: embeddings with input noise, two blocks of attention and MLP with dropout, LayerNorm, separate head."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from harness.reference.data import SEQUENCE_LENGTH, VOCABULARY
from harness.reference.dropout import RowDropout
from harness.reference.mlp import MiniMLP
from harness.reference.recompute import run_again, run_layers
from harness.reference.rng import RowDraws

NUM_BLOCKS = 2
NUM_HEADS = 4


class Block(nn.Module):
    """One transformer block, pre-norm, causal; with `recompute_attention` its attention is not kept but computed again."""

    def __init__(self, width: int, dropout: float, draws: RowDraws, recompute_attention: bool = False) -> None:
        super().__init__()
        self.recompute_attention = recompute_attention
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False))
        self.dropout = RowDropout(dropout, draws)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        normed = self.norm_attention(hidden)
        attended = run_again(self._attend, normed) if self.recompute_attention else self._attend(normed)
        hidden = hidden + self.dropout(self.projection(attended))
        mixed: Tensor = hidden + self.dropout(self.mlp(self.norm_mlp(hidden)))
        return mixed

    def _attend(self, hidden: Tensor) -> Tensor:
        batch, time, width = hidden.shape
        heads = self.qkv(hidden).view(batch, time, 3, NUM_HEADS, width // NUM_HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        # No dropout inside: its mask would come from the generator in an order that depends on the kernel.
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, time, width)


class MiniGPT(nn.Module):
    """A language model of some ten thousand parameters.

    Args:
        width: Size of the hidden state, a multiple of `NUM_HEADS`.
        dropout: Dropout probability on each residual branch.
        draws: Source of dropout masks and input noise.
        recompute: `none`, `full` (each block is a segment), or `selective` (attention only).
    """

    def __init__(self, width: int, dropout: float, draws: RowDraws, recompute: str = "none") -> None:
        super().__init__()
        self.recompute = recompute
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        self.position_embedding = nn.Embedding(SEQUENCE_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, dropout, draws, recompute == "selective") for _ in range(NUM_BLOCKS))
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
        if self.recompute == "full":
            hidden = run_layers(list(self.blocks), hidden, layers_per_segment=1)
        else:
            for block in self.blocks:
                hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def build_model(name: str, width: int, dropout: float, draws: RowDraws, recompute: str = "none") -> nn.Module:
    """Build a model by its name on the command line; weights come from torch's default generator.

    Raises:
        ValueError: Unknown name, or recompute where there is nothing to compute again.
    """
    if name == "gpt":
        return MiniGPT(width, dropout, draws, recompute)
    if name != "mlp":
        raise ValueError(f"unknown model {name!r}, expected gpt or mlp")
    if recompute != "none":
        raise ValueError(f"recompute {recompute!r} needs a model with layers to compute again, expected gpt, found mlp")
    return MiniMLP(width, dropout, draws)
