"""How often batches are skipped: one now and then is how loss scaling works, many are a model past its number range."""

from __future__ import annotations

from collections import deque
from typing import Any

WINDOW = 1000
ALERT_RATE = 0.05


class AmpTrainState:
    """Which of the last batches were skipped; part of the checkpoint, or a resume would forget what led up to an alert."""

    def __init__(self) -> None:
        self.recent: deque[bool] = deque(maxlen=WINDOW)
        self.num_skipped = 0

    def record(self, skipped: bool) -> None:
        """Count one batch."""
        self.recent.append(skipped)
        self.num_skipped += skipped

    def rolling_skip_rate(self, window: int = WINDOW) -> float:
        """Return the share of skipped batches among the last `window`, 0 before the first.

        Raises:
            ValueError: The window is not within 1 … `WINDOW`.
        """
        if not 1 <= window <= WINDOW:
            raise ValueError(f"window must lie within 1 … {WINDOW}, found {window}")
        last = list(self.recent)[-window:]
        return sum(last) / len(last) if last else 0.0

    def alert(self) -> str | None:
        """Return a sentence if more than 5 % of the last batches were skipped and there were at least 20, else None."""
        rate = self.rolling_skip_rate()
        if len(self.recent) < 20 or rate <= ALERT_RATE:  # one skip of ten is no trend yet
            return None
        last = len(self.recent)
        return f"{rate:.0%} of the last {last} batches were skipped (alert above {ALERT_RATE:.0%}): check the number range"

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {"recent": [int(skipped) for skipped in self.recent], "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self.recent = deque(map(bool, state["recent"]), maxlen=WINDOW)
        self.num_skipped = int(state["num_skipped"])
