"""What the uninterrupted run was at each of its batches, to tell which of them a resumed process stands before.

Responsible for: reading the logs of the uninterrupted run and of the attempts before this one, and comparing. An attempt that has
gone wrong saves states that the uninterrupted run never had. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# What tells a step, the surest first: parameters alone stand still where the learning rate is 0.
_MATCHES = (("model", "optimizer"), ("model",))


@dataclass(frozen=True)
class Unfinished:
    """A batch that was saved in its middle, between two of the micro-batches that it is accumulated of.

    Attributes:
        micro: how many of them were done; 0 for none.
        losses: of these.
        samples: of these.
        gradients: digest of what they had accumulated.
    """

    micro: int = 0
    losses: tuple[float, ...] = ()
    samples: tuple[int, ...] = ()
    gradients: str = ""


@dataclass
class Golden:
    """Of one rank.

    Attributes:
        states: batches done → digest per component, before the next batch.
        steps: batches done → optimizer updates done.
        samples: batch → its samples.
        saves: batches done → name of the checkpoint that was saved then.
        also: batches done → the other top-level names that were written in that save.
        unfinished: batches done → what was saved in the middle of the next one, in order.
        earlier: (batches done, digests) of the attempts before this one, where they saved, loaded and ended.
        world_size: number of ranks.
    """

    states: dict[int, dict[str, str]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=lambda: {0: 0})
    samples: dict[int, tuple[int, ...]] = field(default_factory=dict)
    saves: dict[int, str] = field(default_factory=dict)
    also: dict[int, Sequence[str]] = field(default_factory=dict)
    unfinished: dict[int, list[Unfinished]] = field(default_factory=dict)
    earlier: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    world_size: int = 0

    @property
    def last(self) -> int:
        """Batches of the whole run."""
        return max(self.steps)

    def saved_as(self, done: int, opened: Sequence[str]) -> str | None:
        """The name of what was saved there; of several the one whose files have been opened."""
        names = [self.saves[done], *self.also.get(done, ())] if done in self.saves else []
        return next((name for name in names if name in opened), names[0] if names else None)

    def position(self, digests: Mapping[str, str], samples: Sequence[int], opened: Sequence[str]) -> tuple[int, str]:
        """Batches done, and by what that was told: components, "checkpoint", "data", or "nothing".

        Several batches may have equal parameters (a skipped one, a learning rate of 0): then the other components tell, then
        whether a checkpoint was saved there whose files have been opened; the latest where all that is equal too.
        """
        # Of a name that is used again and again nobody knows which save it holds.
        several = list(self.saves.values())
        names = {name: done for done, name in self.saves.items() if several.count(name) == 1}
        read = [names[name] for name in opened if name in names]
        there = [done for done in self.saves if self.saved_as(done, opened) in opened]
        restored = [done for done in there if self._goes_on_with_data(done, samples)]
        if restored and self._is_fresh(digests):
            return restored[-1], "checkpoint"  # the position was restored, and nothing else
        by_optimizer = [done for done, state in self.states.items() if _agree(state, digests, ("optimizer",))]
        if len({state.get("optimizer") for state in self.states.values()}) == 1:
            by_optimizer = []  # one without state is the same everywhere
        for components in _MATCHES:
            found = [done for done, state in self.states.items() if _agree(state, digests, components)]
            if components == ("model",) and found == [0] and self._went_on(by_optimizer, read, samples):
                break  # all but the weights was restored: they are as they were in the beginning
            if found:
                return max(found, key=lambda done: self._likeness(done, digests, opened)), "+".join(components)
            wrong = [done for done, state in self.earlier if _agree(state, digests, components)]
            if wrong:
                return wrong[-1], "+".join(components)
        if any(by_optimizer):  # an empty one is not what tells that a job has begun anew
            return max(by_optimizer, key=lambda done: self._likeness(done, digests, opened)), "optimizer"
        if read:
            return read[-1], "checkpoint"
        same = [batch for batch, those in self.samples.items() if samples and those[: len(samples)] == tuple(samples)]
        if same:
            return same[0] - 1, "data"
        return 0, "optimizer" if by_optimizer else "nothing"

    def unfinished_at(self, done: int, pending: Mapping[str, str], samples: Sequence[int]) -> Unfinished:
        """In the middle of which batch a resumed process goes on: told by its gradients, else by its samples.

        A process that begins such a batch anew is in the middle of none.
        """
        several = self.unfinished.get(done, [])
        for one in several:
            if one.gradients and one.gradients == pending.get("gradients"):
                return one
        following = self.samples.get(done + 1, ())
        if not samples or following[: len(samples)] == tuple(samples):
            return Unfinished()
        for one in several:
            if following[len(one.samples) :][: len(samples)] == tuple(samples):
                return one
        return Unfinished()

    def _went_on(self, by_optimizer: Sequence[int], read: Sequence[int], samples: Sequence[int]) -> bool:
        return any(by_optimizer) or bool(read and self._goes_on_with_data(read[-1], samples))

    def _goes_on_with_data(self, done: int, samples: Sequence[int]) -> bool:
        following, first = self.samples.get(done + 1, ()), self.samples.get(1, ())
        return bool(samples) and following[: len(samples)] == tuple(samples) != first[: len(samples)]

    def _is_fresh(self, digests: Mapping[str, str]) -> bool:
        """Whether parameters and optimizer are as they were before the first batch."""
        state = self.states.get(0, {})
        return all(state.get(name, "") == digests.get(name) for name in _MATCHES[0])

    def _likeness(self, done: int, digests: Mapping[str, str], opened: Sequence[str]) -> tuple[int, bool, int]:
        equal = sum(digests.get(name) == value for name, value in self.states[done].items())
        return equal, self.saved_as(done, opened) in opened, done


def _agree(state: Mapping[str, str], digests: Mapping[str, str], components: Sequence[str]) -> bool:
    return all(state.get(name, "") == digests.get(name) for name in components)


def read_earlier(folder: str, rank: int) -> list[tuple[int, dict[str, str]]]:
    """What this rank said of its states in the attempts before this one, the last of them last.

    Args:
        folder: of this attempt, beside which the others lie.
        rank: this one.
    """
    above, own = os.path.split(os.path.normpath(folder))
    found: list[tuple[int, dict[str, str]]] = []
    for name in sorted(os.listdir(above)):  # noqa: PTH208
        path = os.path.join(above, name, f"rank-{rank}.jsonl")  # noqa: PTH118
        if name.startswith("attempt-") and name < own and os.path.exists(path):  # noqa: PTH110
            found += _states_in(path)
    return found


def _states_in(path: str) -> list[tuple[int, dict[str, str]]]:
    found: list[tuple[int, dict[str, str]]] = []
    done: int | None = None
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut by the kill
            if record.get("event") == "batch":
                done = record["batch"]
            elif record.get("event") == "resume":
                done = record.get("batch", record["step"])
            elif record.get("event") == "state" and done is not None:
                found.append((done, record["digests"]))
    return found


def read_golden(folder: str, rank: int) -> Golden:
    """Of this rank, or of rank 0 where there were fewer ranks. Raises: OSError, ValueError if it cannot be read."""
    path = os.path.join(folder, f"rank-{rank}.jsonl")  # noqa: PTH118
    if not os.path.exists(path):  # noqa: PTH110
        path = os.path.join(folder, "rank-0.jsonl")  # noqa: PTH118
    golden, done = Golden(), 0
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            record = json.loads(line)
            event = record.get("event")
            if event == "start":
                golden.world_size = int(record.get("world_size", 0))
            elif event == "batch":
                done = record["batch"]
                golden.steps[done] = record["step"]
                golden.samples[done] = tuple(record.get("samples", ()))
            elif event == "state" and record.get("moment") in ("next", "end"):
                golden.states.setdefault(done, record["digests"])
            elif event == "state" and record.get("micro"):
                losses = tuple(float.fromhex(text) if "0x" in text else float(text) for text in record["losses"])
                held = record["digests"].get("gradients", "")
                one = Unfinished(record["micro"], losses, tuple(record["samples"]), held)
                golden.unfinished.setdefault(done, []).append(one)
            elif event == "save" and record.get("moment") == "end":
                golden.saves[record.get("batch", done)] = record["checkpoint"]
                golden.also[record.get("batch", done)] = record.get("also", ())
    return golden
