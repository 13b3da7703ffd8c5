"""What is asked of a night, and what it has found: data, and the exit code that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.chaos import drawing
from harness.chaos.coverage import Coverage
from harness.chaos.drawing import Schedule
from harness.chaos.running import Ran
from harness.errors import EXIT_FAIL, EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_PASS
from harness.scenario import Scenario
from harness.shrink.search import Smaller


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        scenario: the job.
        seed: of all that is drawn.
        budget_s: seconds until it ends.
        jobs: cases at a time.
        families: of `drawing.FAMILIES`.
        shard: which part of how many, the first is 1.
        launch: how a command is started: auto, warm, cold.
        world_sizes: other numbers of ranks to be drawn; None for those that suggest themselves.
        corpus: the corpus folder, if there is one.
        canary: whether the canary is run.
        shrink: whether failures are made smaller.
        most: cases at most; None for no limit.
        exit_first: end with the first failure, once it has been repeated and made smaller.
    """

    scenario: Scenario
    seed: int
    budget_s: float
    jobs: int
    families: tuple[str, ...] = drawing.DEFAULT_FAMILIES
    shard: tuple[int, int] = (1, 1)
    launch: str = "auto"
    world_sizes: tuple[int, ...] | None = None
    corpus: Path | None = None
    canary: bool = True
    shrink: bool = True
    most: int | None = None
    exit_first: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the journal."""
        fields = {name: value for name, value in vars(self).items() if name not in ("scenario", "corpus")}
        scenario = self.scenario.model_dump(mode="json", exclude_none=True)
        return {**fields, "corpus": str(self.corpus) if self.corpus else None, "scenario": scenario}


@dataclass
class Case:
    """One case of a night.

    Attributes:
        number: from 1, in the order in which they were drawn.
        origin: `drawn`, or `corpus ID`.
        schedule: what is done.
        ran: what came of it; None where it has not run to its end.
        again: what came of the repetition of a failure.
    """

    number: int
    origin: str
    schedule: Schedule
    scenario: Scenario
    ran: Ran | None = None
    again: Ran | None = None

    @property
    def failed(self) -> bool:
        """Whether it failed, be it once."""
        return self.ran is not None and self.ran.outcome == "FAIL"

    @property
    def flaky(self) -> bool:
        """Whether it failed, and did not when it was repeated."""
        return self.failed and self.again is not None and self.again.outcome != "FAIL"


@dataclass
class Found:
    """What a night has found.

    Attributes:
        request: what was asked for.
        folder: of the night.
        began: when, ISO 8601; "" where the journal of an earlier version does not say it.
        cases: all of them, in order.
        coverage: of this night.
        before: of earlier nights.
        smaller: per group of failures, what the first of them was made smaller to.
        regressed: cases of the corpus that had been fixed, and fail again.
        fixed: cases of the corpus that pass.
        notes: what else must be said.
        blocked: why nothing can be said, "" where something can.
        broken: what is wrong with the harness, "" where nothing is.
        used_s: seconds of the budget.
        steps: of the job.
        cut: cases that the end of the budget cut off.
        started: how the job is started, in words.
    """

    request: Request
    folder: Path
    began: str = ""
    cases: list[Case] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    before: Coverage = field(default_factory=Coverage)
    smaller: dict[tuple[str, str], Smaller] = field(default_factory=dict)
    regressed: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    blocked: str = ""
    broken: str = ""
    used_s: float = 0.0
    steps: int = 0
    cut: int = 0
    started: str = ""
    interrupted: bool = False

    @property
    def ran(self) -> list[Case]:
        """The cases that have run to their end."""
        return [case for case in self.cases if case.ran is not None]

    def count(self, outcome: str) -> int:
        """How many cases have this outcome."""
        return sum(case.ran is not None and case.ran.outcome == outcome for case in self.cases)

    @property
    def missed(self) -> int:
        """Cases in which something that was drawn did not happen, and nothing else was wrong."""
        return sum(case.ran is not None and case.ran.missed for case in self.cases)

    def groups(self) -> dict[tuple[str, str], list[Case]]:
        """The failures by kind and component."""
        found: dict[tuple[str, str], list[Case]] = {}
        for case in self.cases:
            if case.failed and case.ran is not None:
                found.setdefault(case.ran.group, []).append(case)
        return found

    @property
    def exit_code(self) -> int:
        """What the process ends with. A drawn fault that did not fire proves nothing; it is no reason to doubt the rest."""
        if self.broken:
            return EXIT_HARNESS
        if self.count("FAIL"):
            return EXIT_FAIL
        undecided = self.count("INCONCLUSIVE") > self.missed or not self.count("PASS")
        return EXIT_INCONCLUSIVE if self.blocked or undecided else EXIT_PASS
