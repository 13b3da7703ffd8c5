"""From the findings of a failed case to their cause: `diagnose`.

Responsible for: which launch, step, rank and component came first; when it was lost; which patterns it fits; the nearest fault;
the file; and what the records do not say. One file per family of patterns (docs/diagnosis.md has their meaning): `schedule`,
`data`, `state`, `progress`, `curve`. Pure: reads what was recorded, never invents; what several patterns explain is said as such.
Not responsible for: whether anything is wrong (`harness.oracle`), or where this is shown (`harness.report`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.diagnose import curve, data, progress, schedule, state
from harness.diagnose.evidence import Evidence
from harness.diagnose.files import file_of
from harness.diagnose.moment import lost_when
from harness.diagnose.words import nearest_fault, paragraph, unknown
from harness.oracle.diagnosis import Diagnosis, Pattern
from harness.oracle.finding import Finding
from harness.oracle.verdict import FiredFault
from harness.store import Baseline, Run

PATTERNS: tuple[Callable[[Evidence], list[Pattern]], ...] = (
    *progress.PATTERNS,
    *schedule.PATTERNS,
    *data.PATTERNS,
    *state.PATTERNS,
    *curve.PATTERNS,
)
# A job that does not get far, or that harms its files, has lost no state that could be told from another.
_OF_STATE = ("diverged", "state-lost", "data-repeated", "data-skipped", "numerics", "corrupt-accepted", "silent-exit")
_OF_PROGRESS = ("restarted-from-scratch", "lost-work", *_OF_STATE)


def diagnose(
    run: Run, baseline: Baseline, findings: Sequence[Finding], component: str, fired: Sequence[FiredFault] = ()
) -> Diagnosis | None:
    """The cause of a failure.

    Args:
        run: the case.
        baseline: its uninterrupted run.
        findings: of all oracles, the root first (`harness.oracle.verdict.decide`).
        component: what the verdict names.
        fired: the faults that took effect, in order.

    Returns:
        None where nothing has failed, or nothing was recorded.
    """
    if not findings or findings[0].outcome != "FAIL" or not run.attempts:
        return None
    evidence = Evidence(run, baseline, findings, component)
    patterns = _fitting(evidence)
    components = _components(evidence, patterns)
    lost = lost_when(evidence, components[0])
    root = evidence.root
    cause = next((one for one in evidence.causes if one.component == components[0]), root)
    first = cause if cause.attempt is not None else root
    ranks = {one.rank for one in findings if one.rank is not None and one.component == components[0]}
    found = Diagnosis(
        component=components[0],
        components=components,
        parts=tuple(n for n in state.wrong_parts(evidence) if n.startswith(components[0] + ".") and n not in components),
        attempt=first.attempt,
        step=root.step if root.step is not None else first.step,
        rank=first.rank if first.rank is not None else root.rank,
        ranks=tuple(sorted(ranks)),
        lost=lost,
        patterns=tuple(patterns),
        fault=nearest_fault(evidence, fired),
        file=file_of(evidence, components[0]),
        unknown=unknown(evidence, components[0], patterns, lost),
        text="",
    )
    return replace(found, text=paragraph(evidence, found))


def _fitting(evidence: Evidence) -> list[Pattern]:
    """All patterns that fit, those of the verdict's component first."""
    if evidence.root.kind not in _OF_PROGRESS:
        return []
    found: dict[tuple[str, str, str], Pattern] = {}
    for pattern in PATTERNS:
        for one in pattern(evidence):
            found.setdefault((one.name, one.component, one.text), one)
    scratch = [one for one in found.values() if one.name == "from-scratch"]
    # The curve alone tells least: it counts where nothing else fits.
    others = [one for one in found.values() if one.family != curve.FAMILY] or list(found.values())
    # A job that began anew has the state, the data and the schedule of a new one; that is said once.
    return scratch or sorted(others, key=lambda one: _order(evidence, one))


def _order(evidence: Evidence, pattern: Pattern) -> int:
    named = evidence.components
    return named.index(pattern.component) if pattern.component in named else len(named)


def _components(evidence: Evidence, patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """What was lost: as the oracles say; where they name nothing, what a pattern speaks of."""
    named = [name for name in evidence.components if name != "none"]
    told = [one.component for one in patterns if one.component not in ("none", *named)] if not named else []
    return tuple(dict.fromkeys([*named, *told])) or ("none",)
