"""What a diagnosis says: which piece of state was lost, when, in which pattern, and what is not known.

Responsible for: the data, and its JSON (docs/diagnosis.md). Not responsible for: finding any of it (`harness.diagnose`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

SCHEMA = "harness.diagnosis/1"

Moment = Literal["before-resume", "save", "load", "after-load"]


@dataclass(frozen=True)
class Pattern:
    """One way of going wrong that the records fit.

    Attributes:
        name: its word in docs/diagnosis.md.
        family: which of several patterns speak of one thing, of which only one can be true: `schedule`, `data`, ….
        component: what it speaks of.
        text: what happened, as the rest of a sentence that begins with "it looks as if".
        evidence: what was compared, and how much of it agreed.
    """

    name: str
    family: str
    component: str
    text: str
    evidence: str


@dataclass(frozen=True)
class NearestFault:
    """The last fault before the failure: its sentence, and where it took effect (None where that is not known)."""

    fault: str
    attempt: int | None
    rank: int | None
    step: int | None


@dataclass(frozen=True)
class Diagnosis:
    """From the findings of a failed case to their cause.

    Attributes:
        component: what was lost or hit.
        components: all components of which that was seen, the likeliest cause first.
        parts: named parts of the component that are wrong, where there is a digest of each; empty where there is none.
        attempt: the launch in which it shows first.
        step: completed optimizer updates there; None where no step is meant.
        rank: the rank it shows on first; None for all or for the job.
        ranks: all ranks on which it shows.
        lost: when it was lost. Several where the records do not tell them apart, none where they say nothing.
        patterns: what it fits; several of one family where the records do not tell them apart.
        fault: the nearest fault; None where none fired.
        file: path relative to the checkpoint directory of what holds it, None where that is not known.
        unknown: what the records do not say, in sentences.
        text: all of it as one paragraph.
    """

    component: str
    components: tuple[str, ...]
    parts: tuple[str, ...]
    attempt: int | None
    step: int | None
    rank: int | None
    ranks: tuple[int, ...]
    lost: tuple[Moment, ...]
    patterns: tuple[Pattern, ...]
    fault: NearestFault | None
    file: str | None
    unknown: tuple[str, ...]
    text: str

    @property
    def pattern(self) -> str | None:
        """The word of the one pattern that fits; None where none does, or where several of one family do."""
        families = [pattern.family for pattern in self.patterns]
        return self.patterns[0].name if self.patterns and families.count(families[0]) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """`harness.diagnosis/1` (docs/diagnosis.md)."""
        return {
            "schema": SCHEMA,
            "component": self.component,
            "components": list(self.components),
            "parts": list(self.parts),
            "attempt": self.attempt,
            "step": self.step,
            "rank": self.rank,
            "ranks": list(self.ranks),
            "lost": list(self.lost),
            "patterns": [
                {"name": p.name, "component": p.component, "text": p.text, "evidence": p.evidence} for p in self.patterns
            ],
            "fault": None if self.fault is None else vars(self.fault),
            "file": self.file,
            "unknown": list(self.unknown),
            "text": self.text,
        }
