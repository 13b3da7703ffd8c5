"""Patterns of the loss curve: which half of a training step went wrong first.

The loss of the first batch after a resume depends on what the forward pass uses: weights, buffers, data, generators. The second
one's depends on what the first update used too: moments, learning rate, scale, gradients. So a curve that is right at first tells
that something of the update was lost. It counts only where no other pattern fits.
Does not tell: which of them; a piece of the forward pass that the loss feels late, such as a generator that is rarely drawn from.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.diagnose.evidence import Evidence
from harness.diagnose.state import wrong_parts
from harness.oracle.diagnosis import Pattern
from harness.oracle.state import is_probed

FAMILY = "curve"


def half_of_a_step(evidence: Evidence) -> list[Pattern]:
    """`forward-state`, `update-state`: the first loss after the resume is wrong, or only those after it are."""
    golden = evidence.golden_batches
    pairs = [(batch, golden[batch.batch]) for batch in evidence.after if batch.batch in golden]
    named = evidence.component != "none" or any(one.component != "none" for one in evidence.causes)
    if evidence.attempt.index == 0 or evidence.moved or len(pairs) < 2 or named:
        return []
    equal = [found.loss == due.loss and found.global_loss == due.global_loss for found, due in pairs]
    if not equal[0]:
        text = "something that the forward pass uses was lost: weights, buffers, data or generators"
        if _digested_right(evidence):
            text = (
                "something that the forward pass uses was lost, and no digest covers it: a counter or statistic of the job's own"
            )
        return [
            Pattern(
                "forward-state", FAMILY, "none", text, f"the first loss after the resume, of batch {pairs[0][0].batch}, differs"
            )
        ]
    if not equal[1]:
        text = "something that only the update uses was lost: moments, learning rate, scale or pending gradients"
        seen = f"the loss of batch {pairs[0][0].batch} is right to the last bit, that of batch {pairs[1][0].batch} is not"
        return [Pattern("update-state", FAMILY, "none", text, seen)]
    return []


def _digested_right(evidence: Evidence) -> bool:
    """Whether everything that is digested was right when a job that is watched from inside began that forward pass."""
    loaded = evidence.loaded
    return is_probed(evidence.run) and bool(loaded) and all(evidence.expected(r) for r in loaded) and not wrong_parts(evidence)


PATTERNS: tuple[Callable[[Evidence], list[Pattern]], ...] = (half_of_a_step,)
