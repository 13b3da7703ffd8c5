"""What an oracle found: one broken promise, or one reason why a promise could not be judged.

Responsible for: the data, and the words that a kind may be, see docs/event-log.md for what they are read off.
Not responsible for: which of several findings is the verdict (`harness.oracle.verdict`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from harness.failures import COMPONENTS as COMPONENTS
from harness.failures import FAIL_KINDS as FAIL_KINDS
from harness.failures import INCONCLUSIVE_REASONS as INCONCLUSIVE_REASONS

Outcome = Literal["FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Finding:
    """One thing that does not hold.

    Attributes:
        outcome: FAIL, or INCONCLUSIVE where it could not be judged.
        kind: the word of the failure or of the reason.
        oracle: which oracle says so.
        message: what happened, one sentence without the kind.
        component: what was lost or hit; a part of one carries a dot (`rng.python`).
        step: completed optimizer updates at the first place where it shows; None where no step is meant.
        rank: the rank it shows on, None for all or for the job.
        file: path relative to the checkpoint directory, None where no file is meant.
        attempt: the launch it shows in; None for the uninterrupted run or the case as a whole.
        expected: what should have been, exact.
        found: what was, exact.
        late: a state that was right after the load, and was seen to be wrong later.
        limit: of a difference of a loss, the largest one that was allowed there; None where that is the scenario's tolerance.
        void: the records themselves are not what was recorded, so that nothing else that is read off them counts.
    """

    outcome: Outcome
    kind: str
    oracle: str
    message: str
    component: str = "none"
    step: int | None = None
    rank: int | None = None
    file: str | None = None
    attempt: int | None = None
    expected: str = ""
    found: str = ""
    late: bool = False
    limit: float | None = None
    void: bool = False

    def __post_init__(self) -> None:
        """Refuses words that no report knows: a misspelt kind would otherwise hide in every table."""
        known = FAIL_KINDS if self.outcome == "FAIL" else INCONCLUSIVE_REASONS
        if self.kind not in known:
            raise ValueError(f"{self.kind!r} is no kind of {self.outcome}; expected one of {', '.join(known)}")
        if self.component.partition(".")[0] not in COMPONENTS:
            raise ValueError(f"{self.component!r} is no component; expected one of {', '.join(COMPONENTS)}")


def fail(kind: str, oracle: str, message: str, **where: Any) -> Finding:
    """A broken promise; `where` are the further fields of `Finding`."""
    return Finding("FAIL", kind, oracle, message, **where)


def inconclusive(reason: str, oracle: str, message: str, **where: Any) -> Finding:
    """A promise that could not be judged; `where` are the further fields of `Finding`."""
    return Finding("INCONCLUSIVE", reason, oracle, message, **where)


def hex_text(value: float) -> str:
    """`float.hex()` without the mantissa's trailing zeros: exact, and short enough to compare by eye."""
    if not math.isfinite(value):
        return str(value)
    mantissa, _, exponent = value.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"


def numbers_text(numbers: list[int]) -> str:
    """Whole numbers in ascending order with runs joined: `3, 5-9`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
