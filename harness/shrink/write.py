"""What a failure that was made smaller is given away as: a replay file, a pytest file, and where it can be, `strace` lines.

Responsible for: the replay file and the pytest file, as texts that need as little as can be of the machine on which the failure
was found. Not responsible for: finding it (`harness.shrink.search`), `strace` (`harness.shrink.strace`).
"""

from __future__ import annotations

import pprint
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.plan import make_plan, narrate, write_plan
from harness.scenario import Command, Reference, Scenario
from harness.shrink.strace import strace_lines
from harness.store import Run, read_run

_WIDTH = 110


@dataclass(frozen=True)
class Files:
    """Where it was written.

    Attributes:
        replay: the replay file.
        test: the pytest file.
        strace: the `strace` lines; None where the faults cannot be said that way.
        why_no_strace: why not, in words.
    """

    replay: Path
    test: Path
    strace: Path | None
    why_no_strace: str = ""


def write_files(scenario: Scenario, group: tuple[str, str], num_runs: int, folder: Path, run: Run, again: Path | None) -> Files:
    """Writes all three.

    Args:
        scenario: the case.
        group: kind and component of its failure.
        num_runs: cases that were run to get there.
        folder: where they go; made if it is missing.
        run: in which it failed.
        again: another run in which it failed; None where there was no time for one.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "_", f"{group[0]}_{group[1]}".lower()).strip("_") or "case"
    scenario = scenario.model_copy(update={"name": name})
    replay, test, strace = folder / f"{name}.toml", folder / f"test_{name}.py", folder / "strace.txt"
    write_plan(make_plan(scenario), replay)
    head = f"# It fails: FAIL {group[0]} ({group[1]}). Made smaller in {num_runs} runs.\n"
    replay.write_text(head + replay.read_text(encoding="utf-8"), encoding="utf-8")
    test.write_text(pytest_file(scenario, group, num_runs), encoding="utf-8")
    lines, why = strace_lines(run, read_run(again) if again else None)
    if why:
        return Files(replay, test, None, why)
    strace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Files(replay, test, strace)


def pytest_file(scenario: Scenario, group: tuple[str, str], num_runs: int) -> str:
    """A test that fails as long as the job does, and passes once it is mended."""
    told = "\n".join(f"    {line}" for line in narrate(make_plan(scenario)))
    facts = _facts(scenario)
    place = ""
    if isinstance(scenario.workload, Command) and scenario.workload.directory:
        facts["workload"]["directory"] = _Code("str(Path(__file__).resolve().parent)")
        place = " The command runs in the folder of this file: put it beside the trainer."
    imports = "from pathlib import Path\n\n" if place else ""
    text = pprint.pformat(facts, width=_WIDTH, sort_dicts=False)
    return (
        f'"""A resume that fails: {group[0]} ({group[1]}); made smaller in {num_runs} runs.\n\n'
        f"{told.replace(chr(92), '/').replace(chr(34) * 3, chr(39) * 3)}\n\n"
        f"Needs resume-harness (pip install), whose plugin brings the fixture check_resume; then: pytest FILE.{place}\n"
        f'"""\n\n{imports}from harness import Scenario\n\nCASE = {text}\n\n\n'
        f"def test_{scenario.name}(check_resume):\n    check_resume(Scenario.build(CASE))\n"
    )


class _Code(str):
    """A text that stands in the file as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _facts(scenario: Scenario) -> dict[str, Any]:
    """What differs from what a scenario is by itself."""
    facts = scenario.model_dump(exclude={"name", "workload"})
    always = ("faults", "world_sizes")
    kept = {name: value for name, value in facts.items() if name in always or value != Scenario.model_fields[name].default}
    return {"workload": _workload(scenario.workload), **kept}


def _workload(workload: Reference | Command) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": workload.kind}
    for name, value in workload.model_dump(exclude={"kind"}).items():
        field = type(workload).model_fields[name]
        if field.is_required() or value != field.default:
            facts[name] = value
    if isinstance(workload, Command):
        folder = workload.directory or ""
        for name in ("command", "resume_command"):
            if facts.get(name):
                facts[name] = tuple(_portable(word, folder) for word in facts[name])
    return facts


def _portable(word: str, folder: str) -> str:
    """A word of a command without the paths of this machine, where that can be."""
    if word == sys.executable:
        return "{python}"
    return word.removeprefix(f"{folder}/") if folder else word
