"""One share of many: how work is split over machines that know nothing of each other.

Responsible for: the words `i/n`, and which of some keys belong to share i. The same keys give the same shares on any machine, in
any order: every key is in exactly one share, and no share has two keys more than another. Pure.
Not responsible for: putting results together again (`harness.report.merge`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import UsageError

_MOST = 10_000


@dataclass(frozen=True)
class Shard:
    """Share `index` of `count`, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str, option: str = "--shard") -> Shard:
        """Reads `2/4`. Raises: UsageError."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= _MOST:
            raise UsageError([f"{option} {text}: expected a share of all, such as 1/4 to 4/4 (at most {_MOST} shares)"])
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that belong to this share; a key that is there twice counts once."""
        # By digest: neighbours (the parameters of one test, the states of one point) take about as long, and are dealt out.
        dealt = sorted(set(keys), key=lambda key: (hashlib.sha256(key.encode(errors="replace")).digest(), key))
        return set(dealt[self.index - 1 :: self.count])
