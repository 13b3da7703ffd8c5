"""Patterns of state: what stands where a component, or a named part of it, should be.

Each compares the digests right after the load with other digests of the same run and of the uninterrupted one: those of a new
job, of another save, of another rank, of another part, of the rounded state; or the digests later on with the one after the load.
Digests that are equal by nature tell nothing: a component that is the same on all ranks was not taken from one of them.
Does not tell: what a digest is not taken of; a value that is wrong in a way of its own. Those leave no pattern, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.diagnose.evidence import Digests, Evidence
from harness.oracle.attributes import MODES, held, names_in, text_of
from harness.oracle.diagnosis import Pattern
from harness.oracle.finding import numbers_text
from harness.oracle.state import ABSENT

# Parts of one sort, of which one can be taken for another: the moments of the optimizer, the weights.
_SORTS = ("optimizer.", "model.", "buffers.", "ema.")
_SHOWN = 3
_DIGITS = 24
_PENDING = "gradients"


def wrong_parts(evidence: Evidence) -> tuple[str, ...]:
    """Every component, and named part of one, that is wrong on some rank right after the load."""
    names = {name for rank in evidence.loaded for name in (*evidence.loaded[rank], *evidence.expected(rank))}
    probed = {name for rank in evidence.probed_parts for name in evidence.wrong_parts_of(rank)}
    return tuple(sorted({name for name in names if evidence.wrong_ranks(name)} | probed))


def fresh(evidence: Evidence) -> list[Pattern]:
    """`fresh`: what a new job begins with, as if nothing had been loaded into it."""
    found = []
    for name in _looked_at(evidence):
        ranks = evidence.wrong_ranks(name)
        pairs = [(evidence.loaded[rank].get(name), evidence.started.get(rank, {}).get(name)) for rank in ranks]
        if pairs and all(one is not None and one == other for one, other in pairs):
            text = f"the {name} is that of a new job, as if nothing of the checkpoint had been put into it"
            found.append(_pattern("fresh", name, text, f"its digest after the load is the one before the load, {_on(ranks)}"))
        elif names := _new_parts(evidence, name, ranks):
            text = f"of the {name} these are as in a new job, as if they had been left out: {', '.join(names[:_SHOWN])}"
            text += f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            found.append(_pattern("fresh", name, text, f"all that is wrong of it is as before the first batch, {_on(ranks)}"))
    return found


def _new_parts(evidence: Evidence, component: str, ranks: list[int]) -> list[str]:
    """The wrong parts of a component, where all of them are those of a new job."""
    names: set[str] = set()
    for rank in ranks:
        wrong = [name for name in evidence.wrong_parts_of(rank) if name.startswith(f"{component}.")]
        new, (_, found) = evidence.new_parts.get(rank, {}), evidence.probed_parts.get(rank, ({}, {}))
        # A moment that was lost is not there yet, as in a new job.
        if not wrong or not new or any(found.get(name) != new.get(name) for name in wrong):
            return []
        names |= set(wrong)
    return sorted(names)


def begun_anew(evidence: Evidence) -> list[Pattern]:
    """`fresh`, of a variable: it has the value that it had before the first batch of the uninterrupted run."""
    found = []
    for cause in evidence.causes:
        log = evidence.baseline.ranks.get(cause.rank or 0)
        first = next(held(log), None) if log is not None else None
        if cause.oracle != "attributes" or cause.component == MODES or cause.late or first is None or first.batch:
            continue
        new = {name: text_of(value) for values in first.values.values() for name, value in values.items()}
        names = [name for name in sorted(new) if new[name] == cause.found and name in names_in(cause.message)]
        if names and cause.found != cause.expected:
            text = f"the variable {names[0]} has the value of a new job, as if it had been left out"
            found.append(
                _pattern("fresh", cause.component, text, f"{cause.found[:_DIGITS]} instead of {cause.expected[:_DIGITS]}")
            )
    return found


def other_mode(evidence: Evidence) -> list[Pattern]:
    """`train-mode`, `requires-grad`: the model's numbers are right, and it is not trained as it was."""
    found: dict[str, Pattern] = {}
    for cause in evidence.causes:
        if cause.component != MODES or cause.late:
            continue
        seen = f"{cause.found} instead of {cause.expected}"
        for name in names_in(cause.message):
            if name.endswith(".training"):
                text = "modules are in another mode (train or eval) than they were: dropout and normalisation do other things"
                found.setdefault("train-mode", _pattern("train-mode", cause.component, text, f"{name}: {seen}"))
            else:
                text = "other parameters require a gradient than did: what was trained is frozen, or the other way round"
                found.setdefault("requires-grad", _pattern("requires-grad", cause.component, text, f"{name}: {seen}"))
            seen = "differs too"
    return list(found.values())


def missing(evidence: Evidence) -> list[Pattern]:
    """`missing`, `pending-gradients-lost`: the component was saved, and after the load there is none."""
    # Those of a batch that is saved in its middle are looked at in its middle only.
    gone = [one for one in evidence.causes if (one.component, one.found, one.late) == (_PENDING, ABSENT, False)]
    lost = {_PENDING: [one.rank or 0 for one in gone]} if gone else {}
    for name in _looked_at(evidence):
        ranks = evidence.wrong_ranks(name)
        if ranks and not any(name in evidence.loaded[rank] for rank in ranks):
            lost[name] = ranks
    found = []
    for name, ranks in lost.items():
        seen = f"it has a digest before the save and none after the load, {_on(ranks)}"
        if name.partition(".")[0] == _PENDING:
            text = "gradients of micro-batches were pending at the save, and are gone: the update after the resume lacks them"
            found.append(_pattern("pending-gradients-lost", name, text, seen))
        else:
            found.append(_pattern("missing", name, f"there is no {name} after the load", seen))
    return found


def other_save(evidence: Evidence) -> list[Pattern]:
    """`older-save`, `newer-save`, `mixed-saves`: the state of another moment of the job, wholly or in part."""
    if evidence.resume is None:
        return []
    here = evidence.resume.batch
    found = []
    for name in _looked_at(evidence):
        ranks = evidence.wrong_ranks(name)
        places = {rank: _batches_with(evidence, name, rank) - {here} for rank in ranks}
        if not ranks or not all(places.values()):
            continue
        common = set.intersection(*places.values())
        if not common:
            each = ", ".join(f"rank {rank} that of batch {numbers_text(sorted(at))}" for rank, at in places.items())
            text = f"the {name} is a mix of several saves: {each}"
            found.append(_pattern("mixed-saves", name, text, f"the digests of these batches are equal, {_on(ranks)}"))
            continue
        nearest = max((b for b in common if b < here), default=min(common))
        if nearest == 0 and all(evidence.loaded[r].get(name) == evidence.started.get(r, {}).get(name) for r in ranks):
            continue  # that of a new job, which `fresh` says
        seen = f"its digest after the load is the uninterrupted run's after batch {numbers_text(sorted(common))}, {_on(ranks)}"
        others = [rank for rank in evidence.loaded if rank not in ranks and _tells(evidence, name, rank, nearest)]
        if others:
            text = f"the {name} is a mix of two saves: that of batch {nearest} {_on(ranks)}, that of batch {here} {_on(others)}"
            found.append(_pattern("mixed-saves", name, text, seen))
        else:
            word = "older" if nearest < here else "newer"
            text = f"the {name} is that of an {word} save" if word == "older" else f"the {name} is that of a {word} moment"
            found.append(_pattern(f"{word}-save", name, f"{text} (batch {nearest} instead of {here})", seen))
    return found


def _batches_with(evidence: Evidence, name: str, rank: int) -> set[int]:
    """The batches after which the uninterrupted run had this digest on this rank."""
    digest = evidence.loaded[rank].get(name)
    return {batch for batch, ranks in evidence.golden_states.items() if digest and ranks.get(rank, {}).get(name) == digest}


def _tells(evidence: Evidence, name: str, rank: int, batch: int) -> bool:
    """Whether this rank would look otherwise, had it the state of that batch."""
    return evidence.golden_states[batch].get(rank, {}).get(name) != evidence.loaded[rank].get(name)


def other_rank(evidence: Evidence) -> list[Pattern]:
    """`one-rank-everywhere`, `ranks-swapped`: what another rank had saved."""
    saved = {rank: evidence.expected(rank) for rank in evidence.loaded}
    found = []
    for name in _looked_at(evidence):
        digests = {rank: held.get(name) for rank, held in saved.items()}
        if evidence.moved or len(digests) < 2 or None in digests.values() or len(set(digests.values())) < len(digests):
            continue
        if not evidence.wrong_ranks(name):
            continue
        sources = {digest: rank for rank, digest in digests.items()}
        taken = {rank: sources.get(evidence.loaded[rank].get(name)) for rank in digests}
        if None in taken.values():
            continue
        seen = ", ".join(f"rank {rank} has rank {source}'s digest" for rank, source in taken.items() if rank != source)
        if len(set(taken.values())) == 1:
            source = next(iter(taken.values()))
            text = f"every rank has the {name} of rank {source}"
            found.append(_pattern("one-rank-everywhere", name, text, seen))
        elif len(set(taken.values())) == len(taken):
            found.append(_pattern("ranks-swapped", name, f"the ranks have each other's {name}", seen))
    return found


def swapped_parts(evidence: Evidence) -> list[Pattern]:
    """`moments-swapped`, `tensors-swapped`: named parts of one sort have each other's content. Needs a digest per part."""
    found = []
    for sort in _SORTS:
        taken: dict[str, str] = {}
        for rank in evidence.loaded:
            due, loaded = evidence.probed_parts.get(rank, ({}, {}))
            taken |= _taken(evidence.loaded[rank] | loaded, evidence.expected(rank) | due, sort)
        if not taken:
            continue
        moments = sort == "optimizer."
        what = (
            "the moments of parameters belong to others of them"
            if moments
            else f"tensors of {sort[:-1]} have each other's content"
        )
        shown = [f"{name} has that of {source}" for name, source in sorted(taken.items())]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        name = "moments-swapped" if moments else "tensors-swapped"
        found.append(_pattern(name, sort[:-1], what, ", ".join(shown[:_SHOWN]) + more))
    return found


def _taken(loaded: Digests, expected: Digests, sort: str) -> dict[str, str]:
    """Wrong part → the part that it has the content of; nothing where two of them would have the same."""
    wrong = [name for name, digest in expected.items() if name.startswith(sort) and loaded.get(name) != digest]
    contents = [expected[name] for name in wrong]
    if len(wrong) < 2 or len(set(contents)) < len(contents):
        return {}
    source = dict(zip(contents, wrong, strict=True))
    # A tensor of zeros that was restored as something else is no exchange, so parts of which nothing is known do not count.
    taken = {name: source[loaded[name]] for name in wrong if loaded.get(name) in source}
    return taken if len(taken) >= 2 and len(set(taken.values())) == len(taken) else {}


def rounded(evidence: Evidence) -> list[Pattern]:
    """`rounded`: the state rounded to a shorter type and back. Needs `rounded` in the `state` record of the save."""
    if evidence.resume is None or evidence.moved:
        return []
    found = []
    for name in _looked_at(evidence):
        ranks = evidence.wrong_ranks(name)
        types = [_types_giving(evidence, name, rank) for rank in ranks]
        for dtype in sorted(set.intersection(*types)) if types else []:
            seen = f"its digest after the load is that of what was saved, rounded to {dtype}, {_on(ranks)}"
            found.append(_pattern("rounded", name, f"the {name} was rounded to {dtype} between the save and the load", seen))
    return found


def _types_giving(evidence: Evidence, name: str, rank: int) -> set[str]:
    """The types to which the saved state, rounded, has the digest that was seen after the load."""
    said = evidence.rounded.get(rank, {})
    return {dtype for dtype, digests in said.items() if name in digests and digests[name] == evidence.loaded[rank].get(name)}


def stands_still(evidence: Evidence) -> list[Pattern]:
    """`frozen`: right after the load, and never moved again although the uninterrupted run's moves."""
    found = []
    for name in _looked_at(evidence):
        ranks = [rank for rank in evidence.loaded if _is_frozen(evidence, name, rank)]
        if ranks and len(ranks) == len(evidence.loaded):
            seen = f"its digest at every later save is the one after the load, {_on(ranks)}"
            found.append(_pattern("frozen", name, f"the {name} was restored and never changed again, although it should", seen))
    return found


def _is_frozen(evidence: Evidence, name: str, rank: int) -> bool:
    loaded = evidence.loaded[rank].get(name)
    later = [
        (digests[name], _golden(evidence, batch, rank).get(name)) for batch, digests in evidence.later(rank) if name in digests
    ]
    moved = [found for found, golden in later if golden is not None and golden != loaded]
    return loaded is not None and not evidence.wrong_ranks(name) and bool(moved) and all(found == loaded for found, _ in later)


def _golden(evidence: Evidence, batch: int, rank: int) -> Mapping[str, str]:
    return evidence.golden_states.get(batch, {}).get(rank, {})


def undone(evidence: Evidence) -> list[Pattern]:
    """`overwritten`: right after the load, and later what a new job, or another moment of the job, has instead."""
    found = []
    for name in _looked_at(evidence):
        for rank in evidence.loaded:
            text = "" if evidence.wrong_ranks(name) else _overwritten(evidence, name, rank)
            if text:
                found.append(
                    _pattern(
                        "overwritten", name, f"the {name} was restored, and overwritten afterwards", f"{text}, {_on([rank])}"
                    )
                )
                break
    return found


def _overwritten(evidence: Evidence, name: str, rank: int) -> str:
    """What it was overwritten with, in words; "" where that is not seen."""
    new = evidence.started.get(rank, {}).get(name)
    for batch, digests in evidence.later(rank):
        found, golden = digests.get(name), _golden(evidence, batch, rank).get(name)
        if found is None or golden is None or found == golden or found == evidence.loaded[rank].get(name):
            continue
        if found == new:
            return f"after batch {batch} its digest is that of a new job"
        at = [b for b, ranks in evidence.golden_states.items() if b != batch and ranks.get(rank, {}).get(name) == found]
        return f"after batch {batch} its digest is the uninterrupted run's after batch {numbers_text(at)}" if at else ""
    return ""


def scale_restarted(evidence: Evidence) -> list[Pattern]:
    """`scale-restarted`: the loss is multiplied with the scale that a new job begins with."""
    golden = evidence.golden_batches
    if evidence.resume is None or not evidence.after or not golden:
        return []
    first, new = evidence.after[0], golden[min(golden)].scale
    due = golden.get(first.batch)
    if new is None or due is None or first.scale != new or due.scale == new:
        return []
    text = f"the scale of the loss is back at what a new job begins with, {new:g} instead of {due.scale:g}"
    return [Pattern("scale-restarted", "scale", "scaler", text, f"batch {first.batch}, the first after the resume")]


def _looked_at(evidence: Evidence) -> tuple[str, ...]:
    """Components that are lost or suspected, without their parts: these have patterns of their own."""
    probed = {name for due, found in evidence.probed_parts.values() for name in (*due, *found)}
    whole = [name for name in wrong_parts(evidence) if name not in probed and not _is_part(evidence, name)]
    return tuple(dict.fromkeys([*evidence.components, *whole]))


def _is_part(evidence: Evidence, name: str) -> bool:
    """Whether a longer name's beginning is a component that is wrong as well."""
    pieces = name.split(".")
    heads = [".".join(pieces[:n]) for n in range(1, len(pieces))]
    return any(evidence.wrong_ranks(head) for head in heads)


def _on(ranks: list[int]) -> str:
    return f"on rank{'s' * (len(ranks) > 1)} {numbers_text(ranks)}"


def _pattern(name: str, component: str, text: str, evidence: str) -> Pattern:
    return Pattern(name, f"state of {component}", component, text, evidence)


PATTERNS: tuple[Callable[[Evidence], list[Pattern]], ...] = (
    fresh,
    begun_anew,
    other_mode,
    missing,
    other_save,
    other_rank,
    swapped_parts,
    rounded,
    stands_still,
    undone,
    scale_restarted,
)
