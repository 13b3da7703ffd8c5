"""The first bad one of a history, by halving: commits or versions, each tried by a real replay.

Responsible for: the order of trials, and what may be concluded from them. A trial is good, bad, or cannot be done (skipped), as
with `git bisect`. Not responsible for: what lies between a good and a bad one (`harness.commits`, `harness.environments`), and
what a trial is (`harness.replaying`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

Answer = Literal["good", "bad", "skip"]


class History(Protocol):
    """What can be tried."""

    def between(self, good: set[str], bad: str) -> list[str]:
        """The names that are no ancestors of a good one and earlier than the bad one, those that halve it best first."""
        ...

    def title(self, name: str) -> str:
        """How a report calls it: short, with what a person knows it by."""
        ...


@dataclass(frozen=True)
class Trial:
    """One of the history, tried.

    Attributes:
        name: which.
        answer: good, bad, or skip: it cannot be told.
        why: what was seen, one line.
        path: the run directory; None where it did not come to a run.
    """

    name: str
    answer: Answer
    why: str
    path: Path | None = None


@dataclass(frozen=True)
class Bisected:
    """What came of it.

    Attributes:
        trials: in the order in which they were done; the good and the bad end first.
        first_bad: the name; None where it could not be found.
        suspects: where it could not be found, the ones of which one is the first bad one.
        problem: why an end is not what it was said to be: "good-is-bad", "bad-is-good", "no-answer", or "".
        titles: of every name in here, what a person knows it by.
    """

    trials: tuple[Trial, ...]
    first_bad: str | None
    suspects: tuple[str, ...] = ()
    problem: Literal["", "good-is-bad", "bad-is-good", "no-answer"] = ""
    titles: Mapping[str, str] = field(default_factory=dict)


def bisect(history: History, good: str, bad: str, trial: Callable[[str], Trial], say: Callable[[str], None]) -> Bisected:
    """Finds the first bad one between a good and a bad one; both ends are tried before anything else.

    Args:
        history: what lies between.
        good: one that is said to be good.
        bad: a later one that is said to be bad.
        trial: tries one.
        say: takes a line of progress.
    """
    search = _Search(history, good, bad, trial, say)
    found = search.ends() or search.halve()
    names = {*(one.name for one in found.trials), *found.suspects}
    return replace(found, titles={name: history.title(name) for name in names})


class _Search:
    def __init__(self, history: History, good: str, bad: str, trial: Callable[[str], Trial], say: Callable[[str], None]) -> None:
        self._history, self._trial, self._say = history, trial, say
        self._goods, self._bad = {good}, bad
        self._trials: list[Trial] = []

    def ends(self) -> Bisected | None:
        """What is wrong with the ends; None where the good one is good and the bad one bad."""
        (good,) = self._goods
        if (answer := self._try(good)) != "good":
            return Bisected(tuple(self._trials), None, problem="good-is-bad" if answer == "bad" else "no-answer")
        if (answer := self._try(self._bad)) != "bad":
            return Bisected(tuple(self._trials), None, problem="bad-is-good" if answer == "good" else "no-answer")
        return None

    def halve(self) -> Bisected:
        skipped: set[str] = set()
        while True:
            between = self._history.between(self._goods, self._bad)
            candidates = [name for name in between if name not in skipped]
            if not candidates:
                suspects = (*between, self._bad) if between else ()
                return Bisected(tuple(self._trials), None if between else self._bad, suspects)
            # What does not run is often surrounded by what does not run either, so the next best one is not the next to try.
            away = _spread(len(between) - len(candidates))
            chosen = candidates[int(away * len(candidates))]
            answer = self._try(chosen)
            if answer == "good":
                self._goods.add(chosen)
            elif answer == "bad":
                self._bad = chosen
            else:
                skipped.add(chosen)

    def _try(self, name: str) -> Answer:
        left = len(self._history.between(self._goods, self._bad))
        self._say(f"run {len(self._trials) + 1}, then about {left.bit_length()} more: {self._history.title(name)}")
        self._trials.append(self._trial(name))
        self._say(f"  {self._trials[-1].answer}: {self._trials[-1].why}")
        return self._trials[-1].answer


def _spread(number: int) -> float:
    """0 for 0, then 1/2, 1/4, 3/4, 1/8, …: each far from those before it (van der Corput's sequence)."""
    digits = f"{number:b}"[::-1]
    return int(digits, 2) / float(1 << len(digits))
