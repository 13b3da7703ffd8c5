"""Random generators: seeding, capture, restore, and draws that do not depend on the number of ranks.

Training draws from three generators (Python's, NumPy's, torch's CPU one) and, on a GPU, from one more per device. A
checkpoint that forgets any of them resumes with other dropout masks, another augmentation, another order.
"""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators; torch's call reaches CUDA lazily, without starting it."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def derive_seed(*parts: int) -> int:
    """Mix numbers into one 31-bit seed. Sums such as seed + step + rank would collide between ranks."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def capture_rng_state() -> dict[str, Any]:
    """Copy the state of every generator, without drawing from any.

    CUDA generators are included only if CUDA already runs: asking for them would start it, which costs seconds and
    makes a later fork impossible.

    Returns:
        Plain numbers and tensors only, so that `torch.load(weights_only=True)` accepts it: `python` and `numpy` hold
        the Mersenne Twister's words as int64, `torch` is a uint8 tensor, `cuda` a list of uint8 tensors by device.
    """
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "words": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
    }


def restore_rng_state(state: dict[str, Any], omitted: Collection[str] = ()) -> None:
    """Put every generator back to where `capture_rng_state` saw it.

    Args:
        state: What `capture_rng_state` returned.
        omitted: Generators that a planted defect leaves out: `rng.python`, `rng.numpy`, `rng.torch`.

    Raises:
        ValueError: The state holds more CUDA generators than this process has devices.
    """
    cuda = state["cuda"]
    if cuda and len(cuda) > torch.cuda.device_count():
        raise ValueError(f"the state holds {len(cuda)} CUDA generators, this process has {torch.cuda.device_count()}")
    python, numpy = state["python"], state["numpy"]
    if "rng.python" not in omitted:
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    words = numpy["words"].numpy().astype(np.uint32)
    if "rng.numpy" not in omitted:
        np.random.set_state((numpy["kind"], words, numpy["position"], numpy["has_gauss"], numpy["gauss"]))
    if "rng.torch" in omitted:
        return
    torch.set_rng_state(state["torch"].cpu())
    for device, one in enumerate(cuda):
        torch.cuda.set_rng_state(one.cpu(), device)


def pack(value: object) -> Tensor:
    """Serialise a value of plain types and tensors into a 1-D uint8 tensor, for containers that take tensors only."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(packed: Tensor) -> Any:
    """Undo `pack`; refuses anything but plain types and tensors, so no code from the data can run."""
    return torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)


@dataclass(frozen=True)
class RowDraws:
    """Random tensors whose rows belong to samples.

    With `shared` every rank holds the same generator, draws for the global batch, and keeps its own rows: the samples
    get the same numbers on 1, 2 or 4 ranks. Without, every rank draws from its own stream for its own rows, as most
    trainers do; then another world size means other numbers.

    Attributes:
        rank: This rank; it owns rows rank, rank + world_size, …, which is how `DistributedSampler` deals samples out.
        world_size: Number of ranks.
        shared: Whether all ranks hold the same generator.
        noise: The generator of `normal`; `uniform` draws from torch's global one of the tensor's device.
    """

    rank: int
    world_size: int
    shared: bool
    noise: torch.Generator

    def uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Draw from [0, 1) for this rank's rows; `shape[0]` is the rank's own number of samples."""
        return self._own_rows(torch.rand(self._drawn_shape(shape), device=device))

    def normal(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Draw standard normal numbers for this rank's rows; `shape[0]` is the rank's own number of samples."""
        # On the CPU wherever the model is: one generator, one state to save, the same numbers on every device.
        return self._own_rows(torch.randn(self._drawn_shape(shape), generator=self.noise).to(device))

    def _drawn_shape(self, shape: torch.Size) -> tuple[int, ...]:
        return (shape[0] * (self.world_size if self.shared else 1), *shape[1:])

    def _own_rows(self, drawn: Tensor) -> Tensor:
        return drawn[self.rank :: self.world_size] if self.shared else drawn
