"""A diagnosis in words: one paragraph, the nearest fault, and what the records do not say."""

from __future__ import annotations

from collections.abc import Sequence

from harness.diagnose.evidence import Evidence
from harness.oracle.diagnosis import Diagnosis, Moment, NearestFault, Pattern
from harness.oracle.finding import numbers_text
from harness.oracle.verdict import FiredFault

_TENSORS = ("model", "optimizer", "buffers", "ema")
_WHEN: dict[tuple[Moment, ...], str] = {
    ("before-resume",): "It went wrong before any resume, so that no checkpoint has to do with it",
    ("save",): "It was lost at the save: {checkpoint} does not hold what the uninterrupted run had there",
    ("load",): "It was lost at the load: {checkpoint} is right, and what was made of it is not",
    ("save", "load"): "It was right just before the save of {checkpoint} and wrong just after its load",
    (
        "after-load",
    ): "It was lost after the load: what was loaded from {checkpoint} was right, and was then overwritten or not followed",
}
_SHOWN_PARTS = 4


def paragraph(evidence: Evidence, found: Diagnosis) -> str:
    """The whole diagnosis as one paragraph; `found` with everything but its text."""
    sentences = [_what(evidence, found), _when(evidence, found), *_patterns(found.patterns)]
    if found.fault is not None:
        sentences.append(f"The nearest fault: {_fault(found.fault)}")
    if found.file is not None:
        sentences.append(f"Look into {found.file}")
    if found.unknown:
        sentences.append(f"Not known: {'; '.join(found.unknown)}")
    return ". ".join(one[0].upper() + one[1:] for one in sentences if one) + "."


def _what(evidence: Evidence, found: Diagnosis) -> str:
    root = evidence.root
    on = f" of rank{'s' * (len(found.ranks) > 1)} {numbers_text(list(found.ranks))}" if found.ranks else ""
    more = [name for name in found.components[1:] if name != "none"]
    also = f" (and {', '.join(more)})" if more else ""
    parts = list(found.parts[:_SHOWN_PARTS])
    rest = f" and {len(found.parts) - _SHOWN_PARTS} more" if len(found.parts) > _SHOWN_PARTS else ""
    named = f", namely {', '.join(parts)}{rest}" if parts else ""
    step = "" if root.step is None else f" at step {root.step}"
    place = "" if found.attempt is None else f", in attempt {found.attempt}"
    if found.component in ("none", "process", "checkpoint-files"):
        return (
            f"{root.kind}{step}{place}: no piece of state is named" if found.component == "none" else f"{root.kind}{step}{place}"
        )
    return f"the {found.component}{on}{also}{named} went wrong; it shows as {root.kind}{step}{place}"


def _when(evidence: Evidence, found: Diagnosis) -> str:
    resume = evidence.resume
    checkpoint = resume.name if resume is not None and resume.name else "the checkpoint"
    if evidence.root.kind == "restarted-from-scratch":
        return ""  # no checkpoint was loaded, and the pattern says so
    return _WHEN.get(found.lost, "").format(checkpoint=checkpoint)


def _patterns(patterns: Sequence[Pattern]) -> list[str]:
    """One sentence per family; what the records do not tell apart stands in one sentence."""
    families: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        families.setdefault(pattern.family, []).append(pattern)
    sentences: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for ones in families.values():
        joined = ", or ".join(f"{one.text} ({one.evidence})" for one in ones)
        sentence = f"either {joined}; the records fit each of these" if len(ones) > 1 else joined
        # Of several components that went the same way, the first is told of and the others are named.
        same = sentences.setdefault(tuple(one.name for one in ones), (sentence, []))
        if same[0] != sentence:
            same[1].append(ones[0].component)
    return [
        text + (f"; so {'is' if len(more) == 1 else 'are'} {', '.join(more)}" if more else "")
        for text, more in sentences.values()
    ]


def _fault(fault: NearestFault) -> str:
    parts = [fault.fault]
    parts += [f"rank {fault.rank}"] if fault.rank is not None else []
    parts += ["in every attempt"] if fault.attempt is None else [f"attempt {fault.attempt}"]
    parts += [f"step {fault.step}"] if fault.step is not None else []
    return ", ".join(parts)


def nearest_fault(evidence: Evidence, fired: Sequence[FiredFault]) -> NearestFault | None:
    """The last fault that fired before the failure showed: in its launch or the ones before it; None where there is none."""
    until = evidence.attempt.index
    before = [one for one in fired if one.attempt is None or one.attempt <= until]
    # Of a bad batch, which is bad in every attempt, only where nothing else was done.
    own = [one for one in before if one.attempt is not None] or before
    last = max(own, key=lambda one: -1 if one.attempt is None else one.attempt, default=None)
    return None if last is None else NearestFault(last.fault, last.attempt, last.rank, last.step)


def unknown(evidence: Evidence, component: str, patterns: Sequence[Pattern], lost: Sequence[Moment]) -> tuple[str, ...]:
    """What the records do not say, in sentences."""
    said = []
    head = component.partition(".")[0]
    has_state = any(log.of("state") for log in evidence.attempt.ranks.values())
    if len(lost) > 1:
        said.append("whether the file lacks it or the load does not restore it, since nobody else has read the file")
    if not lost and head not in ("process", "checkpoint-files"):
        said.append("when it was lost" if has_state else "when and what was lost: the job logged no state")
    if head in _TENSORS and evidence.wrong_ranks(component) and not _has_parts(evidence, component):
        said.append(f"which of its tensors, since there is one digest for all of the {component}")
    own = [one for one in patterns if one.component.partition(".")[0] == head or one.component == "none"]
    if not own and head not in ("process", "checkpoint-files"):
        said.append("why: no known pattern fits")
        if head in _TENSORS and not evidence.rounded:
            said.append("whether it was rounded to a shorter type, since no digest of the rounded state was logged")
    if head == "data" and not evidence.samples(evidence.attempt.ranks):
        said.append("which samples were taken: the job logged none")
    return tuple(said)


def _has_parts(evidence: Evidence, component: str) -> bool:
    names = {name for digests in evidence.loaded.values() for name in digests}
    names |= {name for due, _ in evidence.probed_parts.values() for name in due}
    return any(name.startswith(component + ".") for name in names)
