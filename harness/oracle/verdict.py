"""From all findings of a case to its one verdict.

Responsible for: the worst wins (FAIL over INCONCLUSIVE over PASS), and among findings of one outcome the root: what came
first and explains the others. Not responsible for: finding anything (the oracles), or printing it (`harness.report`).

Two exceptions to "the worst wins". A baseline that differs from itself makes the case INCONCLUSIVE whatever else was seen, since
nothing can be held against a job that does not repeat itself; so do records that were changed, lost, or are still being written,
since what is read off them may never have happened. What else was seen stays among the findings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.oracle.diagnosis import Diagnosis
from harness.oracle.finding import COMPONENTS, Finding
from harness.oracle.noise import Noise
from harness.oracle.unfelt import Unfelt

# Two failures of different ranks of this list: the higher is the root. Within one, the earlier attempt, then the order here.
# What the trainer did with its checkpoints and processes explains its numbers; numbers explain the digests that differ by
# them (the digests then name the component); tidiness explains nothing.
_RANKS = (
    (
        "code-executed",
        "job-failed",
        "corrupt-accepted",
        "restarted-from-scratch",
        "lost-work",
        "last-good-lost",
        "bad-refusal",
        "resume-crashed",
        "hang",
        "silent-exit",
    ),
    ("data-repeated", "data-skipped", "diverged", "numerics"),
    ("state-lost",),
    ("not-durable", "retention", "leak", "blocking-save", "load-memory"),
)
_REASONS = ("baseline-unstable", "harness-error", "foreign-death", "not-comparable", "fault-did-not-fire", "out-of-time")
# Failures of which a lost component is the likely cause.
FELT_IN_NUMBERS = ("diverged", "numerics", "data-repeated", "data-skipped", "state-lost")
_BEFORE_ALL_ATTEMPTS = -1
# Of what is logged of a variable; a number is shorter.
_DIGEST_LENGTH = 24


@dataclass(frozen=True)
class FiredFault:
    """A fault that was done to the job: the sentence, and where it took effect.

    Attributes:
        fault: the canonical sentence.
        attempt: in which launch; None for a bad batch, which is bad in all of them.
        rank: on which rank; None where no rank is meant.
        step: updates that the rank had completed; None where unknown.
    """

    fault: str
    attempt: int | None
    rank: int | None
    step: int | None


@dataclass(frozen=True)
class Verdict:
    """What is known of a case in the end.

    Attributes:
        id: the case's name.
        fault: all planned faults, "; " between them, or "none".
        outcome: PASS, FAIL or INCONCLUSIVE.
        findings: everything that was found, the root first.
        component: what was lost or hit, with its part (`rng.python`); "none" for a PASS.
        fired: the faults that took effect, in order.
        max_loss_diff: largest |resumed − uninterrupted|, NaN if one is no number, None if nothing was compared.
        tolerance: largest allowed one.
        same_world_size: whether all attempts had the same number of ranks, so that 0 is expected on a CPU.
        resumed_from: step of each restart's checkpoint, in order; 0 for a fresh start.
        lost_steps: batches to be done again at each restart, in order.
        replay: path of the replay file.
        duration_s: seconds that all attempts took.
        expect: what the job was to do in the end, `resumes` or `refuses`.
        diagnosis: the cause of a FAIL; None for any other outcome.
        noise: what one flipped last bit makes of the loss; None unless the tolerance is `auto`.
        unfelt: what was not restored although it changes during training, and nothing has felt.
    """

    id: str
    fault: str
    outcome: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    findings: tuple[Finding, ...] = ()
    component: str = "none"
    fired: tuple[FiredFault, ...] = ()
    max_loss_diff: float | None = None
    tolerance: float = 1e-4
    same_world_size: bool = True
    resumed_from: tuple[int, ...] = ()
    lost_steps: tuple[int, ...] = ()
    replay: str = ""
    duration_s: float = 0.0
    expect: str = "resumes"
    diagnosis: Diagnosis | None = None
    noise: Noise | None = None
    unfelt: tuple[Unfelt, ...] = ()

    @property
    def root(self) -> Finding | None:
        """The finding that is the verdict; None for a PASS."""
        return self.findings[0] if self.findings else None

    @property
    def kind(self) -> str | None:
        """The word of the failure or of the reason; None for a PASS."""
        return self.root.kind if self.root else None

    def to_json(self) -> dict[str, Any]:
        """The entry of `cases` in the `--json` file (`harness.result/1`).

        With several restarts, `resumed_from` is the first one's, and `lost_steps` the most that any one lost. A
        `max_loss_diff` that is no finite number is null, since JSON has none; the verdict is then FAIL.
        """
        root = self.root
        diff = self.max_loss_diff
        return {
            "id": self.id,
            "fault": self.fault,
            "verdict": self.outcome,
            "kind": self.kind,
            "component": public_component(self.component),
            "step": root.step if root else None,
            "rank": root.rank if root else None,
            "file": root.file if root else None,
            "max_loss_diff": diff if diff is not None and math.isfinite(diff) else None,
            "resumed_from": self.resumed_from[0] if self.resumed_from else None,
            "lost_steps": max(self.lost_steps, default=None),
            "replay": self.replay,
            "duration_s": self.duration_s,
            "noise": None if self.noise is None else self.noise.to_json(),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "unfelt": [one.to_json() for one in self.unfelt],
        }


def public_component(component: str) -> str:
    """A component without its part (`rng.python` is `rng`), as the `--json` contract names it."""
    name = component.partition(".")[0]
    return name if name in COMPONENTS else "none"


def decide(findings: Sequence[Finding]) -> tuple[Literal["PASS", "FAIL", "INCONCLUSIVE"], tuple[Finding, ...], str]:
    """Weighs the findings of a case.

    Returns:
        The outcome, the findings with the root first, and the component.
    """
    if not findings:
        return "PASS", (), "none"
    nothing_counts = any(finding.kind == "baseline-unstable" or finding.void for finding in findings)
    ordered = _numbers_first(sorted(findings, key=lambda finding: _weight(finding, nothing_counts)))
    root = ordered[0]
    return root.outcome, ordered, _component(root, ordered)


def _numbers_first(ordered: list[Finding]) -> tuple[Finding, ...]:
    """A silent exit explains nothing where the numbers of that attempt had gone wrong before it: they come first then."""
    root = ordered[0]
    numbers = [one for one in ordered if root.kind == "silent-exit" and one.oracle in ("data", "loss") and one.outcome == "FAIL"]
    numbers = [one for one in numbers if one.attempt == root.attempt and one.step is not None]
    return (*numbers, *(one for one in ordered if one not in numbers))


def weight_of(kind: str) -> int:
    """How much a failure kind explains: 0 for what the trainer did with its checkpoints, more for what follows from that."""
    return next(index for index, kinds in enumerate(_RANKS) if kind in kinds)


def _weight(finding: Finding, nothing_counts: bool) -> tuple[int, int, int, int, bool]:
    """Sorts the root to the front; findings of equal weight keep their order."""
    if finding.outcome == "INCONCLUSIVE":
        own = -1 if finding.void else _REASONS.index(finding.kind)
        return (0 if nothing_counts else 2, own, 0, 0, False)
    rank = weight_of(finding.kind)
    # What is wrong in the uninterrupted run already (attempt None) came before everything.
    attempt = _BEFORE_ALL_ATTEMPTS if finding.attempt is None else finding.attempt
    # How many batches were done in the end is seen last.
    return (1, rank, attempt, _RANKS[rank].index(finding.kind), finding.oracle == "completion")


def _component(root: Finding, findings: Sequence[Finding]) -> str:
    """The root's component; of a failure that is felt in numbers, the component whose digest tells the cause."""
    if root.outcome != "FAIL" or root.kind not in ("diverged", "data-repeated", "data-skipped"):
        return root.component
    lost = likely_causes(root, findings)
    if root.oracle == "data":
        # A variable that holds the position, or the samples themselves, says no more than that they are others.
        lost = [one for one in lost if one.oracle == "state" or one.component.startswith("rng")]
        if root.kind != "diverged" and not _drawn_by_lost_generators(root, lost, findings):
            return root.component
    # Other samples, and more or fewer batches, make other numbers in everything: what was right at the load is not why.
    if lost and not (lost[0].late and root.component in ("data", "counters")):
        return lost[0].component
    return root.component


def _drawn_by_lost_generators(root: Finding, lost: Sequence[Finding], findings: Sequence[Finding]) -> bool:
    """Whether nothing was lost at the load but generators; not where a number was, such as a position: both follow from that."""
    positions = [one for one in findings if one.oracle == "attributes" and one.component == "counters" and not one.late]
    told = any(one.attempt == root.attempt and len(one.expected) < _DIGEST_LENGTH for one in positions)
    early = [one for one in lost if not one.late]
    return bool(early) and all(one.component.startswith("rng") for one in early) and not told


def likely_causes(root: Finding, findings: Sequence[Finding]) -> list[Finding]:
    """The lost components that a failure can be due to: those of the first attempt that lost any, up to its own."""
    if root.kind not in FELT_IN_NUMBERS:
        return []
    lost = [finding for finding in findings if finding.kind == "state-lost" and finding.oracle in ("state", "attributes")]
    if root.kind == "state-lost" and root not in lost:
        return []
    until = math.inf if root.attempt is None else root.attempt
    before = [finding for finding in lost if finding.attempt is None or finding.attempt <= until]
    first = min((finding.attempt or 0 for finding in before), default=0)
    # What was wrong at the load explains what is wrong later.
    return sorted((finding for finding in before if (finding.attempt or 0) == first), key=lambda finding: finding.late)
