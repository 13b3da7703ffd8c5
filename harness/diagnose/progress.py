"""Patterns of the whole job: begun again from scratch, an older checkpoint, ranks from different saves, ended too early.

Reads where each rank resumed and ended. Does not tell: why a checkpoint was not taken, unless the trainer has said so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from harness.diagnose.data import epoch_starts
from harness.diagnose.evidence import Evidence
from harness.oracle.diagnosis import Pattern

FAMILY = "progress"


def from_scratch(evidence: Evidence) -> list[Pattern]:
    """`from-scratch`: a checkpoint stood there, and the job began with its first batch."""
    finding = next((f for f in evidence.findings if f.kind == "restarted-from-scratch"), None)
    if finding is None:
        return []
    text = "the checkpoints that were there were not looked for, or not taken: the job began again from scratch"
    equal = not any(f.oracle == "loss" for f in evidence.findings)
    silent = "; its losses are those of the uninterrupted run, so that no curve shows it" if equal else ""
    return [_pattern("from-scratch", "checkpoint-files", text, f"{finding.expected} was due, {finding.found}{silent}")]


def older_checkpoint(evidence: Evidence) -> list[Pattern]:
    """`older-checkpoint`: a newer checkpoint was committed and left alone, and an older one was taken."""
    finding = next((f for f in evidence.findings if f.kind == "lost-work" and f.file), None)
    if finding is None:
        return []
    text = f"the job went on from an older checkpoint than the newest one, {finding.file}"
    return [_pattern("older-checkpoint", "checkpoint-files", text, f"{finding.expected} was due, {finding.found}")]


def ranks_apart(evidence: Evidence) -> list[Pattern]:
    """`mixed-saves`: ranks resumed from different saves."""
    resumes = evidence.history.resumes[evidence.attempt.index] if evidence.attempt.index else []
    if len({(resume.batch, resume.step) for resume in resumes}) < 2:
        return []
    each = ", ".join(f"rank {r.rank} from batch {r.batch}" for r in sorted(resumes, key=lambda r: r.rank))
    return [_pattern("mixed-saves", "counters", "the ranks resumed from different saves", each)]


def ended_early(evidence: Evidence) -> list[Pattern]:
    """`one-epoch-short`, `one-batch-short`, `counts-what-is-left`, `ends-early`: fewer batches than planned, and how many."""
    golden = [end for log in evidence.baseline.ranks.values() for end in log.of("end")]
    ends = [end for log in evidence.attempt.ranks.values() for end in log.of("end")]
    if evidence.moved or not golden or not ends:
        return []
    planned, done = golden[0].get("batches"), ends[0].get("batches")
    if type(planned) is not int or type(done) is not int or done >= planned:
        return []
    seen = f"the job said that it had ended after {done} batches of {planned}"
    start = evidence.resume.batch if evidence.resume is not None else 0
    found = []
    starts = epoch_starts(evidence)
    lengths = {after - before for before, after in itertools.pairwise(starts)}
    if lengths == {planned - done}:
        found.append(_pattern("one-epoch-short", "counters", "the job ended exactly one epoch too early", seen))
    if planned - done == 1:
        found.append(_pattern("one-batch-short", "counters", "the job ended exactly one batch too early", seen))
    if start and done == max(start, planned - start):
        text = f"the job ended as if it had to do only the {planned - start} batches that were left, counted from the first one"
        found.append(_pattern("counts-what-is-left", "counters", text, seen))
    return found or [_pattern("ends-early", "counters", f"the job ended {planned - done} batches too early", seen)]


def _pattern(name: str, component: str, text: str, evidence: str) -> Pattern:
    return Pattern(name, FAMILY, component, text, evidence)


PATTERNS: tuple[Callable[[Evidence], list[Pattern]], ...] = (from_scratch, older_checkpoint, ranks_apart, ended_early)
