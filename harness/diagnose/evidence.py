"""What the records of a case say around its failure, of this run and the uninterrupted one side by side.

Responsible for: reading state digests, learning rates and samples once, so that a pattern is a comparison and no search. Digests
are of one rank where all work was done on one number of ranks, else of the whole job as a rank sees it (`harness.oracle.whole`).
Not responsible for: what they mean (the patterns), or what is wrong (`harness.oracle`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from harness.oracle.finding import Finding
from harness.oracle.history import History, Resume
from harness.oracle.verdict import likely_causes
from harness.oracle.whole import views
from harness.store import AttemptRun, Baseline, Batch, RankLog, Record, Run

Digests = dict[str, str]
Samples = tuple[int, ...]
# Moments of a `state` record (docs/event-log.md): before anything was loaded, as read from the file, after the load, at a save, …
START, FILE, LOAD = "start", "file", "load"
_LATER = ("save", "next", "saving", "end")
# How the probe names the parts of a component: `0:0.layer.weight.exp_avg`, `0.layer.weight`; the options of a group `0.1`.
_FIRST, _GROUP = re.compile(r"^(0:)?0\.(?=.)"), re.compile(r"0\.\d+")


class Evidence:
    """Everything that patterns look at.

    Attributes:
        findings: of all oracles, the root first.
        root: the finding that is the verdict.
        component: what the verdict names.
        attempt: the launch that went wrong first.
        resume: where that launch began, by the rank furthest back; None where it is the first one, or never got there.
        moved: whether work was done on another number of ranks than this launch has, so that ranks hold other parts.
    """

    def __init__(self, run: Run, baseline: Baseline, findings: Sequence[Finding], component: str) -> None:
        self.run, self.baseline = run, baseline
        self.findings, self.root, self.component = findings, findings[0], component
        self.history = History(run, baseline)
        self.causes = likely_causes(self.root, findings)
        self.attempt = self._attempt()
        self.resume: Resume | None = self.history.resume_of(self.attempt.index)
        past = [a for a in run.attempts[: self.attempt.index] if any(log.batches for log in a.ranks.values())]
        self.moved = any(a.world_size != self.attempt.world_size for a in past) or baseline.world_size != self.attempt.world_size

    def _attempt(self) -> AttemptRun:
        shown = [f.attempt for f in (self.root, *self.causes) if f.attempt is not None and f.attempt < len(self.run.attempts)]
        return self.run.attempts[min(shown)] if shown else self.run.attempts[-1]

    # -- state ---------------------------------------------------------------------------------------------------------

    @cached_property
    def components(self) -> tuple[str, ...]:
        """What was seen to be lost, the likeliest cause first."""
        lost = [finding.component for finding in self.causes]
        return tuple(dict.fromkeys([self.component, *lost]))

    @cached_property
    def loaded(self) -> dict[int, Digests]:
        """Per rank, right after the load."""
        return self._first(self.attempt, LOAD)

    @cached_property
    def started(self) -> dict[int, Digests]:
        """Per rank, before anything was loaded."""
        return self._first(self.attempt, START) or self._of_new_job()

    @cached_property
    def in_file(self) -> dict[int, Digests]:
        """Per rank, as it was read from the checkpoint, before it was given to the job."""
        return self._first(self.attempt, FILE)

    @cached_property
    def writer(self) -> AttemptRun | None:
        """The launch that wrote the checkpoint which was loaded; None where that is not known."""
        if self.resume is None or not self.resume.name:
            return None
        for index in range(self.attempt.index - 1, -1, -1):
            saved = self.history.saves[index].values()
            if any((s.name, s.step) == (self.resume.name, self.resume.step) for found in saved for s in found):
                return self.run.attempts[index]
        return None

    @cached_property
    def saved(self) -> dict[int, Digests]:
        """Per rank, right before that checkpoint was saved."""
        if self.writer is None or self.resume is None:
            return {}
        found: dict[int, Record] = {}
        for rank, done in self.history.saves[self.writer.index].items():
            here = [s.state for s in done if (s.name, s.step) == (self.resume.name, self.resume.step) and s.digests]
            if here:
                found[rank] = here[-1]
        return self._read(found, self.writer.world_size)

    @cached_property
    def rounded(self) -> dict[int, dict[str, Digests]]:
        """Per rank, type → what was saved, rounded to it; of trainers whose `state` record of the save says so."""
        if self.writer is None or self.resume is None:
            return {}
        found: dict[int, dict[str, Digests]] = {}
        for rank, done in self.history.saves[self.writer.index].items():
            for save in done:
                said = save.state.get("rounded")
                if self.resume.name in save.tops and save.step == self.resume.step and isinstance(said, dict):
                    found[rank] = {str(t): _digests({"digests": digests}) for t, digests in said.items()}
        return found

    @cached_property
    def golden_states(self) -> dict[int, dict[int, Digests]]:
        """Batches done → per rank, what the uninterrupted run held then (of several moments of one batch the first)."""
        return {batch: self._read(found, self.baseline.world_size) for batch, found in self._golden_records.items()}

    @cached_property
    def _golden_records(self) -> dict[int, dict[int, Record]]:
        records: dict[tuple[int, int], dict[int, Record]] = {}
        for rank, log in self.baseline.ranks.items():
            counts: dict[int, int] = {}
            for batch, record in states(log, 0, ("save", "next", "end")):
                place = counts[batch] = counts.get(batch, -1) + 1
                records.setdefault((batch, place), {})[rank] = record
        return {batch: found for (batch, place), found in sorted(records.items()) if place == 0}

    @cached_property
    def probed_parts(self) -> dict[int, tuple[Digests, Digests]]:
        """Of a job that is watched from inside: per rank, its named parts as they should be and as they were after the load.

        Of components of which both say their parts; `optimizer.exp_avg` of parameter `2.weight` is `optimizer.2.weight.exp_avg`.
        """
        if self.moved or self.resume is None or not self._repeats:
            return {}
        due, found = self._golden_records.get(self.resume.batch, {}), {}
        for rank, log in self.attempt.ranks.items():
            one, other = _parts(due.get(rank)), _parts(next(iter(log.of("state", moment=LOAD)), None))
            both = one.keys() & other.keys()
            found[rank] = (_named(one, both), _named(other, both))
        return found

    @property
    def golden(self) -> dict[int, Digests]:
        """Per rank, what the uninterrupted run held where this launch began."""
        return {} if self.resume is None or not self._repeats else self.golden_states.get(self.resume.batch, {})

    def expected(self, rank: int) -> Digests:
        """What a rank should have loaded, by what was saved, else by the uninterrupted run."""
        return self.saved.get(rank) or self.golden.get(rank) or {}

    def later(self, rank: int) -> list[tuple[int, Digests]]:
        """(batches done, digests) of a rank at each later moment of this launch."""
        if self.moved or self.resume is None or rank not in self.attempt.ranks:
            return []
        return [(batch, _digests(record)) for batch, record in states(self.attempt.ranks[rank], self.resume.batch, _LATER)]

    def wrong_ranks(self, component: str) -> list[int]:
        """The ranks on which a component is not what it should be right after the load."""
        noise = component in self.baseline.noise
        return [rank for rank in self.loaded if not noise and self._is_wrong(component, rank)]

    def _is_wrong(self, component: str, rank: int) -> bool:
        expected = self.expected(rank)
        return bool(expected) and self.loaded[rank].get(component) != expected.get(component)

    @property
    def _repeats(self) -> bool:
        return self.run.plan.scenario.compare_with == "same" and not self.baseline.unstable

    def _of_new_job(self) -> dict[int, Digests]:
        """Of a job that is watched from inside: what its first launch, or the uninterrupted run, held before the first batch."""
        records = {rank: found[0] for rank, log in self.baseline.ranks.items() if (found := log.of("state", moment=LOAD))}
        return self._read(records, self.baseline.world_size) if self._repeats else {}

    def _first(self, attempt: AttemptRun, moment: str) -> dict[int, Digests]:
        records = {rank: found[0] for rank, log in attempt.ranks.items() if (found := log.of("state", moment=moment))}
        return self._read(records, attempt.world_size)

    def _read(self, records: Mapping[int, Record], world_size: int) -> dict[int, Digests]:
        if not self.moved:
            return {rank: _digests(record) for rank, record in records.items()}
        whole = views(dict(records), world_size)
        # Every rank of another number sees the same whole; the first one's view stands for those that are new.
        return {rank: whole.get(rank, whole[min(whole)]) for rank in range(self.attempt.world_size)} if whole else {}

    @cached_property
    def new_parts(self) -> dict[int, Digests]:
        """Of a job that is watched from inside: per rank, its named parts before its first batch."""
        found = {}
        for rank, log in self.baseline.ranks.items() if self._repeats else ():
            parts = _parts(next(iter(log.of("state", moment=LOAD)), None))
            found[rank] = _named(parts, parts)
        return found

    def wrong_parts_of(self, rank: int) -> tuple[str, ...]:
        """The named parts that a rank has otherwise after the load, of a job that is watched from inside."""
        due, found = self.probed_parts.get(rank, ({}, {}))
        wrong = {name for name in due.keys() | found.keys() if due.get(name) != found.get(name)}
        # That a parameter has another set of moments is told by these.
        return tuple(sorted(name for name in wrong if not any(other.startswith(f"{name}.") for other in wrong)))

    # -- numbers -------------------------------------------------------------------------------------------------------

    @cached_property
    def after(self) -> list[Batch]:
        """The batches of this launch, by the lowest rank that has logged any."""
        return next((log.batches for _, log in sorted(self.attempt.ranks.items()) if log.batches), [])

    @cached_property
    def golden_batches(self) -> dict[int, Batch]:
        """Batch → what the lowest rank of the uninterrupted run said of it."""
        log = next((log for _, log in sorted(self.baseline.ranks.items()) if log.batches), None)
        return {} if log is None else {batch.batch: batch for batch in log.batches}

    def samples(self, ranks: Mapping[int, RankLog]) -> dict[int, dict[int, Samples]]:
        """Batch → rank → its samples, of batches of which every rank has named some."""
        held: dict[int, dict[int, Samples]] = {}
        for rank, log in ranks.items():
            for batch in log.batches:
                held.setdefault(batch.batch, {})[rank] = batch.samples
        return {number: parts for number, parts in sorted(held.items()) if len(parts) == len(ranks) and all(parts.values())}


def states(log: RankLog, start: int, moments: Sequence[str]) -> list[tuple[int, Record]]:
    """(batches done, record) of each `state` record of these moments, in order."""
    found: list[tuple[int, Record]] = []
    batch = start
    for record in log.records:
        if record["event"] == "batch" and type(record.get("batch")) is int:
            batch = record["batch"]
        elif record["event"] == "state" and record.get("moment") in moments:
            found.append((batch, record))
    return found


def _parts(record: Record | None) -> dict[str, Digests]:
    """Component → name → first digits of a digest, as the probe says them."""
    said = (record or {}).get("parts")
    parts = said if isinstance(said, dict) else {}
    return {
        str(name): {str(k): str(v) for k, v in part.items()} for name, part in parts.items() if isinstance(part, dict) and part
    }


def _named(parts: Mapping[str, Digests], components: Collection[str]) -> Digests:
    return {f"{component}.{_plain(name)}": text for component in components for name, text in parts[component].items()}


def _plain(name: str) -> str:
    """Without the numbers of the first optimizer and the first model, which are the only ones of most jobs."""
    return _FIRST.sub("", name) if ":" in name or not _GROUP.fullmatch(name) else f"group {name.partition('.')[2]}"


def _digests(record: Record) -> Digests:
    found = record.get("digests")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
