"""The kinds of resume defects that people report, planted in small trainers as people write them, and healthy ones beside each.

Responsible for: reading the lists (`kinds.toml` of each folder), one scenario per trainer, and whether a verdict names what was
planted. Not responsible for: the trainers (tests/quality/kinds), or what must be seen by which oracle.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tomlkit.exceptions import TOMLKitError

from harness.case import Workbench, run_case
from harness.errors import UsageError
from harness.oracle.verdict import Verdict, public_component
from harness.scenario import Scenario, describe_validation
from harness.workers import run_all

FOLDER = Path("tests/quality/kinds")
LIST = "kinds.toml"
# A job that hangs costs its deadline, and these take a second or two.
_DEADLINE_S = 60.0


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Trainer(_Model):
    """One small trainer, with its defect or without one.

    Attributes:
        name: unique within its kind.
        script: file beside the list.
        arguments: of the script with the defect; `{ckpt}` is the checkpoint directory.
        healthy: of the script without it; absent where it can only be wrong, or is never wrong (then `expect` is absent).
        healthy_faults: what is done to the one without it, where that is something else.
        control: arguments of the script that does the same work otherwise, and must give the same numbers.
        resumed: arguments of its restarts with the defect, where they are others.
        ranks: how many, or one number per attempt; more than one are started by torchrun.
        faults: what is done to it, as of `harness.grammar`.
        expect: `KIND COMPONENT`, any of which names the defect; absent for a trainer that is healthy.
        rows: public reports that it repeats, by their ids in the list of reports.
        why: what is wrong, in words.
        scenario: further fields of the scenario.
        workload: further fields of its command; in a list of words `{script}` is the path of the script.
    """

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    script: str
    arguments: tuple[str, ...]
    healthy: tuple[str, ...] | None = None
    resumed: tuple[str, ...] | None = None
    ranks: tuple[int, ...] = (1,)
    faults: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    healthy_faults: tuple[str, ...] | None = None
    control: tuple[str, ...] | None = None
    rows: tuple[str, ...] = ()
    why: str = ""
    scenario: dict[str, Any] = {}
    workload: dict[str, Any] = {}


class Kind(_Model):
    """One kind of the list of reports.

    Attributes:
        kind: its number, `K01`.
        title: what is lost or broken.
        trainer: the trainers that show it.
    """

    kind: str = Field(pattern=r"^K\d\d$")
    title: str
    trainer: tuple[Trainer, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Planted:
    """A case that must be named, or stay green.

    Attributes:
        kind: `K01`.
        name: of the trainer, and of the case.
        scenario: to be run.
        expect: what names it; () where it must pass.
        rows: ids of the public reports.
    """

    kind: str
    name: str
    scenario: Scenario
    expect: tuple[str, ...]
    rows: tuple[str, ...]

    def detected(self, verdict: Verdict) -> bool:
        """Whether the defect turned the case red."""
        return verdict.outcome == "FAIL"

    def named(self, verdict: Verdict) -> bool:
        """Whether kind and component are those of the defect."""
        return self.detected(verdict) and f"{verdict.kind} {public_component(verdict.component)}" in self.expect


def read_kinds(folder: Path) -> list[Planted]:
    """Every case of every kind, the planted ones and their healthy twins.

    Raises:
        UsageError: there are none, or a list is wrong.
    """
    lists = sorted(folder.glob(f"K*/{LIST}"))
    if not lists:
        raise UsageError([f"there is no K*/{LIST} below {folder}; expected a checkout of the project ({FOLDER})"])
    return [case for file in lists for case in _cases(file)]


def rates(cases: Sequence[Planted], bench: Workbench, say: Callable[[str], None], jobs: int) -> dict[str, dict[str, int]]:
    """Runs them all.

    Args:
        cases: of `read_kinds`.
        bench: where.
        say: is told each case that did not come out as it must.
        jobs: cases at a time.

    Returns:
        Kind → `planted`, `detected`, `named`, `healthy`, `false_alarms`.
    """
    found: dict[str, dict[str, int]] = {}
    # Scripts of the project's own, of which it is known that they give the same numbers however they are started.
    bench = replace(bench, golden_launch="warm")
    for case, verdict in run_all(partial(_run, bench), cases, jobs):
        counts = found.setdefault(case.kind, dict.fromkeys(("planted", "detected", "named", "healthy", "false_alarms"), 0))
        right = case.named(verdict) if case.expect else verdict.outcome == "PASS"
        if case.expect:
            counts["planted"] += 1
            counts["detected"] += case.detected(verdict)
            counts["named"] += case.named(verdict)
        else:
            counts["healthy"] += 1
            counts["false_alarms"] += verdict.outcome != "PASS"
        if not right:
            wanted = " or ".join(case.expect) or "PASS"
            say(f"{case.kind} {case.name}: expected {wanted}, found {verdict.outcome} {verdict.kind} {verdict.component}")
    return dict(sorted(found.items()))


def _run(bench: Workbench, case: Planted) -> Verdict:
    verdict, directory = run_case(case.scenario, bench)
    shutil.rmtree(directory.path, ignore_errors=True)
    return verdict


def _cases(file: Path) -> Iterator[Planted]:
    try:
        found = Kind.model_validate(tomlkit.parse(file.read_text()).unwrap())
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise UsageError([f"{file} is no TOML: {error}"]) from None
    except ValidationError as error:
        raise UsageError([f"{file}: {problem}" for problem in describe_validation(error)]) from None
    for trainer in found.trainer:
        script = (file.parent / trainer.script).resolve()
        if trainer.expect:
            yield _case(found.kind, trainer.name, trainer, trainer.arguments, script)
        if not trainer.expect or trainer.healthy is not None:
            own = trainer.arguments if trainer.healthy is None else trainer.healthy
            yield _case(found.kind, f"{trainer.name}-healthy" if trainer.expect else trainer.name, trainer, own, script)


def _case(kind: str, name: str, trainer: Trainer, arguments: Sequence[str], script: Path) -> Planted:
    several = max(trainer.ranks) > 1
    start = ["torchrun", "--nproc-per-node", "{world_size}"] if several else ["{python}"]
    workload = {"kind": "command", "probe": True, "command": [*start, str(script), *arguments], **trainer.workload}
    if trainer.resumed is not None and arguments is trainer.arguments:
        workload["resume_command"] = [*start, str(script), *trainer.resumed]
    if trainer.control is not None:
        workload["control_command"] = [*start, str(script), *trainer.control]
    healthy = name != trainer.name or not trainer.expect
    data = {
        "name": f"{kind}-{name}",
        "workload": {key: _filled(value, script) for key, value in workload.items()},
        "world_sizes": trainer.ranks,
        "faults": trainer.healthy_faults if healthy and trainer.healthy_faults is not None else trainer.faults,
        "compare_with": "same" if trainer.control is None else "control",
        "deadline_s": _DEADLINE_S,
        **{key: tuple(value) if isinstance(value, list) else value for key, value in trainer.scenario.items()},
    }
    return Planted(kind, name, Scenario.build(data), () if healthy else trainer.expect, () if healthy else trainer.rows)


def _filled(value: Any, script: Path) -> Any:
    return tuple(str(script) if word == "{script}" else word for word in value) if isinstance(value, list) else value
