"""What a restart does not have of what changed during training, though nothing has felt it: to be told, and no failure.

Of a job that is watched from inside, on the uninterrupted run's number of ranks: averages, generators and plain attributes that
are held in variables, and the global generators, which right after the load are not what they are in the uninterrupted run at the
same batch. Only what changes there counts; what changes with every batch, as the last loss does, not where it is right again by
itself at a later look.

Does not verify: what two undisturbed runs do not share, such as times; names that one of the two runs does not have at that
moment; other ranks than the first that resumed; whether it should be restored: a count of this process's steps need not be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.oracle.attributes import COMPONENTS, Held, held, num_values, recovers, text_of
from harness.oracle.finding import Finding
from harness.oracle.history import History
from harness.oracle.state import is_probed, same_bits
from harness.store import Baseline, Run

_SHOWN = 5
# What is another one at more looks than this is worked out anew with each batch, if it is right again by itself.
_OFTEN = 0.5
_GENERATORS = "rng"
# What torch's own loaders count of themselves: of a loader that begins behind the batches that were done it is another number.
_OF_LOADERS = ("_num_yielded", "_base_seed", "_sampler_iter_yielded", "_send_idx", "_rcvd_idx", "_tasks_outstanding")


@dataclass(frozen=True)
class Unfelt:
    """One variable, attribute, average or generator.

    Attributes:
        name: of the variable, with the attributes that lead to it; of a global generator its component.
        component: `ema`, `rng.generators`, `counters`, or `rng.torch` and the like.
        expected: its value in the uninterrupted run, or a digest of it.
        found: the same right after the load.
    """

    name: str
    component: str
    expected: str
    found: str

    @property
    def text(self) -> str:
        """Its name; with both values where they are short."""
        if not (self.expected.startswith("=") and self.found.startswith("=")):
            return self.name
        return f"{self.name} ({text_of(self.expected)} in the uninterrupted run, {text_of(self.found)} after the load)"

    def to_json(self) -> dict[str, str]:
        """An entry of `unfelt`."""
        values = {"expected": text_of(self.expected), "found": text_of(self.found)}
        return {"name": self.name, "component": self.component, **values}


def unfelt(run: Run, baseline: Baseline, findings: Sequence[Finding]) -> tuple[Unfelt, ...]:
    """What was not restored and not felt.

    Args:
        run: the case.
        baseline: its uninterrupted run.
        findings: what all oracles have found; where state or numbers are wrong, that is what must be mended first.

    Returns:
        Averages first, then generators, then what changes least often; nothing where something was felt.
    """
    told = any(one.oracle in ("loss", "data", "completion", "state", "attributes", "control") for one in findings)
    if told or not is_probed(run):
        return ()
    history = History(run, baseline)
    found: dict[str, tuple[int, int, str, Unfelt]] = {}
    for attempt in run.attempts[1:]:
        resumes = [one for one in history.resumes[attempt.index] if one.name]
        resume = min(resumes, key=lambda one: one.rank, default=None)
        if resume is None or not same_bits(run, baseline, attempt, resume.rank):
            continue
        after = list(held(attempt.ranks[resume.rank], resume.batch))
        golden = list(held(baseline.ranks[resume.rank]))
        for place, count, one in _of_load(after, golden, baseline.noise):
            found.setdefault(one.name, (place, count, one.name, one))
    return tuple(one for *_, one in sorted(found.values(), key=lambda row: row[:3]))


def _of_load(after: list[Held], golden: list[Held], noise: frozenset[str]) -> Iterator[tuple[int, int, Unfelt]]:
    """Of one load: place of its component, number of its values in the uninterrupted run, and what it is."""
    if not after or after[0].moment != "load":
        return
    expected = {(one.batch, one.moment): one.values for one in golden}
    now, due = after[0], expected.get((after[0].batch, "next"), {})
    fields = [(field, component, f"{field}.") for field, component in COMPONENTS.items()] + [(_GENERATORS, "", "")]
    for place, (field, component, start) in enumerate(fields):
        before, here = due.get(field, {}), now.values.get(field, {})
        wrong = [name for name in before.keys() & here.keys() if before[name] != here[name] and start + name not in noise]
        counts = num_values(golden, field) if wrong else {}
        later = [_both(one, expected, field) for one in after[1:]] if wrong else []
        for name in wrong:
            often = _changes(golden, field, name) > _OFTEN * len(golden)
            if name in counts and name.rpartition(".")[2] not in _OF_LOADERS and not (often and recovers(name, later)):
                yield place, counts[name], Unfelt(name, component or name, before[name], here[name])


def _changes(golden: list[Held], field: str, name: str) -> int:
    """At how many looks it was another one than at the look before."""
    several = [one.values.get(field, {}).get(name) for one in golden]
    return sum(one != other for one, other in itertools.pairwise(several))


def _both(one: Held, expected: Mapping[tuple[int, str], dict[str, dict[str, str]]], field: str) -> dict[str, tuple[str, str]]:
    """Name → its value in the uninterrupted run and here, of the names that both have at that moment."""
    before = expected.get((one.batch, one.moment), {}).get(field, {})
    return {name: (before[name], value) for name, value in one.values.get(field, {}).items() if name in before}


def told(several: Sequence[Unfelt]) -> str:
    """All of them in a sentence, a handful by name; "" for none."""
    by_name = {one.name: one for one in reversed(several)}
    names = [by_name[name].text for name in dict.fromkeys(one.name for one in several)]
    if not names:
        return ""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"changed during training, not restored by the load, felt by no loss: {', '.join(names[:_SHOWN])}{more}"
