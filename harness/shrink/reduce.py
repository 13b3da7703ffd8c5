"""What is simpler than a case: every single step towards a smaller one.

Responsible for: the order of cases by simplicity, and the candidates, the most drastic first. Pure.
Not responsible for: which of them still fail (`harness.shrink.search`).

Own code and not the property-testing library's shrinker: that one can only make smaller what it has drawn itself, and a replay
file comes from anywhere; it tries one candidate after the other, in hundreds of runs (docs/chaos.md has the figures), within
limits of its own; a run here takes up to minutes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.errors import UsageError
from harness.fault import (
    DamageFault,
    DiskFault,
    ErrnoFault,
    Fault,
    HoldFault,
    NumericFault,
    OperationPoint,
    Position,
    PowerCutFault,
    SignalFault,
    StepPoint,
    Who,
)
from harness.scenario import Reference, Scenario

Cost = tuple[float, ...]
# Settings of the reference trainer and their simplest values; those that a defect needs stay as they are, since else it passes.
_PLAIN = {
    "workers": 0,
    "accumulate": 1,
    "recompute": "none",
    "ema": 0.0,
    "precision": "fp32",
    "parallelism": "ddp",
    "sampler": "distributed",
    "model": "gpt",
    "activation_limit": 0,
    "on_loss_jump": "ignore",
    "reshard": False,
    "rng_scope": "rank",
    "dropout": 0.0,
    "noise": 0.0,
}
_SMALLER = {"width": 8, "global_batch": 1, "batches_per_epoch": 1, "keep_last": 1, "save_every": 1}
_WORDS = {"sigkill": 0, "sigterm": 1, "sigstop": 2}
_STEPS_TRIED = 16
_OCCURRENCES_TRIED = 4


def cost(scenario: Scenario) -> Cost:
    """How far from simple a case is; each step of a reduction makes it smaller."""
    faults = scenario.parsed_faults()
    workload = scenario.workload
    steps = (workload.steps or 0) if isinstance(workload, Reference) else 0
    settings = sum(getattr(workload, name, plain) != plain for name, plain in _PLAIN.items())
    size = sum(float(getattr(workload, name)) for name in _SMALLER) if isinstance(workload, Reference) else 0.0
    return (
        len(faults),
        sum(_attempt(fault) >= 0 for fault in faults) and max(_attempt(fault) for fault in faults) + 1,
        max(scenario.world_sizes) + len(set(scenario.world_sizes)) - 1,
        sum(_form(fault) for fault in faults),
        steps,
        settings,
        size,
        sum(_lateness(fault) for fault in faults),
        len(scenario.world_sizes),
        scenario.expect == "resumes-or-refuses",
    )


def candidates(scenario: Scenario, steps: int, full: Mapping[int, SignalFault] = {}) -> Iterator[tuple[str, Scenario]]:
    """What to try next: each is simpler than the case and possible, the most drastic first; with what it does, in words.

    Args:
        scenario: the case.
        steps: updates of the uninterrupted job.
        full: of the attempts whose disk was too small, a kill where the job has met that.
    """
    now = cost(scenario)
    for words, changes in _changes(scenario, steps, full):
        try:
            simpler = Scenario.build({**scenario.model_dump(), **changes})
        except UsageError:
            continue  # a fault would lie behind the end of the job, say
        if cost(simpler) < now:
            yield words, simpler


def _changes(scenario: Scenario, steps: int, full: Mapping[int, SignalFault]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from _fewer_faults(scenario)
    yield from _fewer_ranks(scenario)
    damaged = any(isinstance(fault, DamageFault) for fault in scenario.parsed_faults())
    if scenario.expect == "resumes-or-refuses" and scenario.same_world_size and not damaged:
        yield "a resume is owed", {"expect": "resumes"}  # what allowed a refusal is gone
    for index, fault in enumerate(scenario.parsed_faults()):
        if isinstance(fault, DiskFault) and fault.attempt in full:
            yield f"'{full[fault.attempt]}' for '{fault}'", _with(scenario, index, full[fault.attempt])
    yield from _simpler_forms(scenario, steps)
    yield from _fewer_steps(scenario)
    yield from _plainer_settings(scenario)
    yield from _earlier(scenario)
    yield from _earlier_together(scenario)
    if len(scenario.world_sizes) > 1 and scenario.same_world_size:
        yield "one number of ranks", {"world_sizes": scenario.world_sizes[:1]}
    yield from _fewer_and_elsewhere(scenario, steps)


# -- fewer faults


def _fewer_faults(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    faults = scenario.parsed_faults()
    count = len(faults)
    if count > 3:
        for half in (range(count // 2), range(count // 2, count)):
            yield f"without {len(half)} faults", without(scenario, set(half))
    for index, fault in enumerate(faults):
        yield f"without '{fault}'", without(scenario, {index})
    if count > 2:  # two at once: an attempt goes with its damage
        for first, second in itertools.combinations(range(count), 2):
            yield f"without '{faults[first]}' and '{faults[second]}'", without(scenario, {first, second})


def without(scenario: Scenario, dropped: set[int]) -> dict[str, Any]:
    """The changes that leave out some faults; attempts that nothing ends any more go with them, and later ones move up."""
    faults = [fault for index, fault in enumerate(scenario.parsed_faults()) if index not in dropped]
    ended = sorted({fault.attempt for fault in faults if isinstance(fault, (SignalFault, PowerCutFault, ErrnoFault, DiskFault))})
    moved: list[Fault] = []
    for fault in faults:
        if isinstance(fault, NumericFault):
            moved.append(fault)
        elif isinstance(fault, DamageFault):
            moved.append(replace(fault, attempt=max(1, sum(attempt < fault.attempt for attempt in ended))))
        elif fault.attempt in ended:
            moved.append(replace(fault, attempt=ended.index(fault.attempt)))
    sizes = [scenario.world_size(attempt) for attempt in ended]
    last = scenario.world_size(scenario.max_attempts - 1)
    return {"faults": tuple(map(str, moved)), "world_sizes": (*sizes, last), "max_attempts": max(2, len(ended) + 2)}


def _fewer_and_elsewhere(scenario: Scenario, steps: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Without a fault, and another as a kill, or at another step or occurrence.

    An attempt that is gone has moved all that follows, and what a request has saved is not there after a kill.
    """
    count = len(scenario.faults)
    dropped = [{index} for index in range(count)] + [set(two) for two in itertools.combinations(range(count), 2)]
    for gone in dropped if count > 2 else ():
        if len(gone) >= count - 1:
            continue
        changes = without(scenario, gone)
        rest = scenario.model_copy(update=changes)
        for index, fault in enumerate(rest.parsed_faults()):
            for other in _elsewhere(fault, steps):
                faults = _with(rest, index, other)
                yield f"{len(gone)} faults fewer, and '{other}'", {**changes, **faults}


def _elsewhere(fault: Fault, steps: int) -> list[Fault]:
    if not isinstance(fault, SignalFault):
        return []
    kill: list[Fault] = [replace(fault, signal="sigkill")] if fault.signal != "sigkill" else []
    if isinstance(fault.point, StepPoint):
        return kill + [replace(fault, point=StepPoint(step)) for step in _early(steps) if step != fault.point.step]
    numbers = [number for number in range(1, _OCCURRENCES_TRIED + 1) if number != fault.point.occurrence]
    return kill + [replace(fault, point=replace(fault.point, occurrence=number)) for number in numbers]


# -- fewer ranks


def _fewer_ranks(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    sizes = scenario.world_sizes
    for size in sorted({1, *range(2, min(max(sizes), 5))}):
        if size < max(sizes):
            yield f"{size} ranks at most", _on_ranks(scenario, tuple(min(size, one) for one in sizes))
    for size in sorted(set(sizes)):
        if len(set(sizes)) > 1:
            yield f"{size} ranks throughout", _on_ranks(scenario, (size,))


def _on_ranks(scenario: Scenario, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The case on other numbers of ranks; a fault of a rank that is gone becomes one of the last that is left."""

    def size(attempt: int) -> int:
        return sizes[min(attempt, len(sizes) - 1)]

    faults: list[Fault] = []
    for fault in scenario.parsed_faults():
        if isinstance(fault, (DamageFault, DiskFault)):
            faults.append(fault)
        elif isinstance(fault, NumericFault):
            faults.append(replace(fault, who=_fitting(fault.who, max(sizes))))
        elif isinstance(fault, HoldFault):
            if max(*fault.who.ranks, fault.until_rank) < size(fault.attempt):
                faults.append(fault)
        elif isinstance(fault, ErrnoFault):
            faults.append(replace(fault, who=_fitting(fault.who, size(fault.attempt))))
        else:
            trigger = None if fault.trigger is None else min(fault.trigger, size(fault.attempt) - 1)
            if isinstance(fault, SignalFault):
                faults.append(replace(fault, who=_fitting(fault.who, size(fault.attempt)), trigger=trigger))
            else:
                faults.append(replace(fault, trigger=trigger))
    return {"faults": tuple(map(str, faults)), "world_sizes": sizes}


def _fitting(who: Who, size: int) -> Who:
    return who if who.quantifier else Who(tuple(sorted({min(rank, size - 1) for rank in who.ranks})))


# -- fewer steps, plainer settings


def _fewer_steps(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    workload = scenario.workload
    if not isinstance(workload, Reference):
        return
    for steps in _towards(workload.steps, 1):
        yield f"{steps} steps", {"workload": {**workload.model_dump(), "steps": steps}}


def _plainer_settings(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    workload = scenario.workload
    if not isinstance(workload, Reference):
        return
    facts = workload.model_dump()
    changed = {name: plain for name, plain in _PLAIN.items() if facts[name] != plain}
    if len(changed) > 1:
        yield "all settings plain", {"workload": {**facts, **changed}}
    for name, plain in changed.items():
        yield f"{name} {plain}", {"workload": {**facts, name: plain}}
    yield "the smallest model", {"workload": {**facts, "width": _SMALLER["width"], "model": "gpt"}}
    for name, least in _SMALLER.items():
        for value in _towards(facts[name], least):
            yield f"{name} {value}", {"workload": {**facts, name: value}}


def _towards(value: int, least: int) -> Iterator[int]:
    """Smaller numbers, the smallest first: the least, then half way again and again."""
    low = least
    while low < value:
        yield low
        low = (low + value + 1) // 2 if (low + value + 1) // 2 < value else value


# -- simpler and earlier points


def _simpler_forms(scenario: Scenario, steps: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, fault in enumerate(scenario.parsed_faults()):
        for other in simpler_forms(fault, steps):
            yield f"'{other}' for '{fault}'", _with(scenario, index, other)


def simpler_forms(fault: Fault, steps: int) -> list[Fault]:
    """The same fault said more simply: all ranks for one, a kill for a request, a step for an operation, a moment for a byte."""
    found: list[Fault] = []
    if isinstance(fault, SignalFault):
        everybody, by = Who(quantifier="all"), fault.trigger if fault.trigger is not None else (*fault.who.ranks, 0)[0]
        if isinstance(fault.point, OperationPoint):
            found += [SignalFault("sigkill", everybody, StepPoint(step), 0, fault.attempt) for step in _early(steps)]
        found.append(replace(fault, signal="sigkill"))
        found.append(replace(fault, who=everybody, trigger=by))
        found.append(replace(fault, patient=False))
        if isinstance(fault.point, OperationPoint):
            point = fault.point
            found += [replace(fault, point=replace(point, moment=m, position=None)) for m in ("before", "after")]
    elif isinstance(fault, ErrnoFault):
        kill = SignalFault(
            "sigkill", Who(quantifier="all"), replace(fault.point, moment="before", position=None), 0, fault.attempt
        )
        if fault.errno_name:
            found.append(replace(kill, trigger=(*fault.who.ranks, 0)[0]))
        found.append(replace(fault, times=1))
        found += [replace(fault, errno_name=name) for name in ("EIO",) if fault.errno_name not in ("", name)]
    elif isinstance(fault, DiskFault):
        found += [SignalFault("sigkill", Who(quantifier="all"), StepPoint(s), 0, fault.attempt) for s in _early(steps)]
    elif isinstance(fault, DamageFault):
        found.append(DamageFault("delete", fault.checkpoint, fault.pattern, attempt=fault.attempt))
        found.append(DamageFault("truncate", fault.checkpoint, fault.pattern, Position(byte=0), attempt=fault.attempt))
        found.append(replace(fault, checkpoint="newest"))
    elif isinstance(fault, NumericFault):
        found.append(replace(fault, times=1))
    return found


def _early(steps: int) -> list[int]:
    """Steps to try: all of a short job, of a long one so many, spread over it."""
    return (
        sorted({1 + number * steps // _STEPS_TRIED for number in range(_STEPS_TRIED)})
        if steps > _STEPS_TRIED
        else [*range(1, steps + 1)]
    )


def _earlier(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, fault in enumerate(scenario.parsed_faults()):
        for other in earlier(fault):
            yield f"'{other}' for '{fault}'", _with(scenario, index, other)


def _earlier_together(scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    """All steps by as much: some jobs only fail if they are stopped twice at the same one, or between the same two saves."""
    faults = scenario.parsed_faults()
    at = {i: f.point.step for i, f in enumerate(faults) if isinstance(f, SignalFault) and isinstance(f.point, StepPoint)}
    if len(at) < 2:
        return
    first = min(at.values())
    for step in _towards(first, 1):
        moved = [
            replace(fault, point=StepPoint(at[index] - first + step)) if index in at else fault  # type: ignore[arg-type]
            for index, fault in enumerate(faults)
        ]
        yield f"all {first - step} steps earlier", {"faults": tuple(map(str, moved))}


def earlier(fault: Fault) -> list[Fault]:
    """The same fault at an earlier step, batch or occurrence, or at a rounder place; the earliest first."""
    if isinstance(fault, NumericFault):
        return [replace(fault, batch=batch) for batch in _towards(fault.batch, 1)]
    if isinstance(fault, DiskFault):
        return []
    if isinstance(fault, DamageFault):
        round_ones = [Position(byte=0), Position(percent=50.0)]
        return [replace(fault, position=one) for one in round_ones if fault.position not in (None, one)]
    point = fault.point
    found: list[Fault] = []
    if isinstance(point, StepPoint):
        return [replace(fault, point=StepPoint(step)) for step in _towards(point.step, 1)]  # type: ignore[arg-type]
    found += [replace(fault, point=replace(point, occurrence=number)) for number in _towards(point.occurrence, 1)]
    if point.position is not None and point.position != Position(percent=50.0):
        found.append(replace(fault, point=replace(point, position=Position(percent=50.0))))
    return found


def _with(scenario: Scenario, index: int, fault: Fault) -> dict[str, Any]:
    faults = list(scenario.faults)
    faults[index] = str(fault)
    return {"faults": tuple(faults)}


# -- measures


def _attempt(fault: Fault) -> int:
    return -1 if isinstance(fault, NumericFault) else fault.attempt


def _form(fault: Fault) -> float:
    """How much a reader has to know to understand a fault."""
    if isinstance(fault, SignalFault):
        where = 0 if isinstance(fault.point, StepPoint) else {"before": 4, "after": 5, "during": 6}[fault.point.moment]
        return where + _WORDS[fault.signal] + (not fault.who.quantifier) + fault.patient
    if isinstance(fault, DamageFault):
        how = {"delete": 0, "truncate": 1, "flip": 2, "zero": 2, "replace": 3, "swap": 4, "tamper": 5}[fault.effect]
        return how + 0.5 * (fault.effect == "truncate" and fault.position != Position(byte=0)) + (fault.checkpoint != "newest")
    if isinstance(fault, ErrnoFault):
        return 8 + (fault.times != 1) + 0.5 * (fault.errno_name != "EIO")
    if isinstance(fault, NumericFault):
        return 1 + (fault.times > 1)
    return 10


def _lateness(fault: Fault) -> float:
    if isinstance(fault, NumericFault):
        return fault.batch
    if isinstance(fault, DiskFault):
        return fault.size_bytes / (1 << 40)
    if isinstance(fault, DamageFault):
        return _oddness(fault.position) + fault.bit / 100
    if isinstance(fault.point, StepPoint):
        return fault.point.step
    return fault.point.occurrence + _oddness(fault.point.position)


def _oddness(position: Position | None) -> float:
    if position in (None, Position(byte=0)):
        return 0.0
    return 0.1 if position == Position(percent=50.0) else 0.2
