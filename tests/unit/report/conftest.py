"""Makes the hand-written cases and `on_disk` importable by their own names, whatever pytest's import mode is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "oracle")]
