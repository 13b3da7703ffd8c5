"""When something was lost: before any resume, at the save, at the load, or after the load.

It was lost at the **save** if it was wrong right before the save already, or if the file does not hold what was there then; at
the **load** if the file is right and what was loaded is not; **after the load** if it was right then. Nobody but the trainer
reads its files: what was right before the save and is wrong after the load was lost at one of the two, and both are said, unless
the trainer's log has a `state` record with the moment `file`, or another launch has loaded the same file and got it right.
"""

from __future__ import annotations

from harness.diagnose.evidence import LOAD, Evidence
from harness.oracle.diagnosis import Moment


def lost_when(evidence: Evidence, component: str) -> tuple[Moment, ...]:
    """The moments that are possible; () where the records say nothing."""
    if evidence.attempt.index == 0:
        return ("before-resume",) if evidence.root.kind in ("diverged", "numerics") else ()
    if evidence.root.kind == "restarted-from-scratch":
        return ("load",)
    ranks = [rank for rank in evidence.loaded if component in evidence.loaded[rank] or component in evidence.expected(rank)]
    if evidence.resume is None or not evidence.resume.name:
        return ()
    if any(one.oracle == "attributes" and one.component == component and not one.late for one in evidence.causes):
        return ("save", "load")  # a variable, of which no digest of a component tells
    if not ranks:
        return ()
    if any(_wrong_at_save(evidence, component, rank) for rank in ranks):
        return ("save",)
    wrong = evidence.wrong_ranks(component)
    if not wrong:
        known = all(component in evidence.loaded[rank] and evidence.expected(rank) for rank in ranks)
        return ("after-load",) if known else ()
    seen = [_wrong_in_file(evidence, component, rank) for rank in wrong]
    if any(seen):
        return ("save",)
    if all(one is False for one in seen) or _loaded_elsewhere(evidence, component):
        return ("load",)
    return ("save", "load")


def _wrong_at_save(evidence: Evidence, component: str, rank: int) -> bool:
    saved, golden = evidence.saved.get(rank, {}).get(component), evidence.golden.get(rank, {})
    return saved is not None and component not in evidence.baseline.noise and bool(golden) and golden.get(component) != saved


def _wrong_in_file(evidence: Evidence, component: str, rank: int) -> bool | None:
    """Whether what was read from the file is not what was there before the save; None where nobody has said."""
    if rank not in evidence.in_file or not evidence.expected(rank):
        return None
    return evidence.in_file[rank].get(component) != evidence.expected(rank).get(component)


def _loaded_elsewhere(evidence: Evidence, component: str) -> bool:
    """Whether another launch on as many ranks has loaded the same checkpoint, and had this component right on every rank."""
    resume = evidence.resume
    for other in evidence.run.attempts[1:]:
        theirs = evidence.history.resume_of(other.index)
        same = theirs is not None and resume is not None and (theirs.name, theirs.batch) == (resume.name, resume.batch)
        if other.index == evidence.attempt.index or not same or other.world_size != evidence.attempt.world_size:
            continue
        loads = {rank: found[0]["digests"] for rank, log in other.ranks.items() if (found := log.of("state", moment=LOAD))}
        expected = {rank: evidence.expected(rank).get(component) for rank in loads}
        if loads and not evidence.moved and all(loads[r].get(component) == expected[r] is not None for r in loads):
            return True
    return False
