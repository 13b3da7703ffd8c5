"""`harness replay`: the case of a replay file once more, several times, or over a history."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import make_writable, new_folder, no_folder, write
from harness.cli.outputs import Outputs, output_options
from harness.errors import EXIT_INCONCLUSIVE, EXIT_NOT_REPRODUCED, EXIT_PASS, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from harness.bisect_request import Request
    from harness.case import Workbench
    from harness.plan import Plan

_MOST_TIMES = 10_000
_BISECT_EXITS = {"": EXIT_PASS, "good-is-bad": EXIT_USAGE, "bad-is-good": EXIT_NOT_REPRODUCED, "no-answer": EXIT_INCONCLUSIVE}


@click.command(name="replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--times", default="1", show_default=True, help="Run it so many times, and say how often it shows the failure.")
@click.option(
    "--bisect",
    nargs=2,
    default=None,
    metavar="GOOD BAD",
    help="Find the first bad commit between two, or the first bad version: NAME==GOOD NAME==BAD.",
)
@click.option("--repo", type=click.Path(path_type=Path), default=None, help="Of the commits. [default: where the script is]")
@click.option("--package", default=None, metavar="NAME", help="GOOD and BAD are versions of this package.")
@click.option("--versions", default=None, metavar="A,B,C", help="The versions to search. [default: all between that pip finds]")
@click.option(
    "--environments",
    type=click.Path(path_type=Path),
    default=None,
    help="Where the environments of versions are kept. [default: ~/.cache/resume-harness/environments]",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where the new run directory goes."
)
@output_options
def replay(
    file: Path,
    times: str,
    bisect: tuple[str, str] | None,
    repo: Path | None,
    package: str | None,
    versions: str | None,
    environments: Path | None,
    out: Path,
    outputs: Outputs,
) -> int:
    """Runs the case of a replay file (a plan.toml, or the run directory that holds it) once more.

    Exit code: that of the verdict; 5 if the file says which failure it shows, and every run passes. With --bisect: 0 the first
    bad one was found, 2 the good end is bad, 3 it cannot be told, 5 the bad end is good. Commits are checked out elsewhere, and
    yours stays as it is; versions are installed into environments of their own.

    Example: harness replay runs/test_x/plan.toml --times 5

    Example: harness replay plan.toml --bisect v1.4 main
    """
    from harness.bisect_request import parse
    from harness.case import Workbench
    from harness.plan import read_plan
    from harness.plan import versions as software
    from harness.session import Session

    problems = [*no_folder(out), *outputs.problems(out)]
    if not times.isdecimal() or not 1 <= int(times[:6]) <= _MOST_TIMES:
        problems.append(f"--times: found {times!r}; expected a whole number from 1 to {_MOST_TIMES}")
    if bisect and (outputs.junit or outputs.summary or outputs.html):
        problems.append("--bisect has an answer, and no cases to report; expected --json at most")
    request = parse(bisect, package, versions, repo, environments, problems)
    try:
        plan = read_plan(file)
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    for name, recorded in plan.versions.items():
        if software().get(name) != recorded:
            click.echo(f"note: recorded with {name} {recorded}, repeated with {software().get(name)}", err=True)
    make_writable(out)
    session = Session.new()
    try:
        bench = Workbench(out.resolve(), out.resolve() / "baselines", session.warm())
        if request is None:
            return _replay(plan, bench, int(times), outputs)
        return _bisect(request, plan, bench, int(times), outputs.json)
    finally:
        session.close()


def _replay(plan: Plan, bench: Workbench, times: int, outputs: Outputs) -> int:
    import json

    from harness.replaying import Replayed, exit_of, replay
    from harness.report.checked import case_document
    from harness.report.document import now, to_text
    from harness.report.replaying import once_text, replays_json, times_text
    from harness.report.result import to_text as as_text
    from harness.store import RunDirectory, read_baseline

    def done(run: Replayed) -> None:
        if times > 1:
            click.echo(f"{run.shown} ({run.path})", err=True)

    began = now()
    runs = replay(plan, bench, times, done)
    click.echo(times_text(runs, plan.expected) if times > 1 else once_text(runs[0], plan.expected))
    baseline = read_baseline(RunDirectory(runs[0].path).golden)
    found = [(run.verdict, run.path) for run in runs]
    document = case_document(["harness", *sys.argv[1:]], plan.scenario, baseline, found, began)
    outputs.write(document, [run.path for run in runs])
    if outputs.json:
        write(outputs.json, as_text(json.loads(to_text(document)) | replays_json(runs, plan.expected)))
    return exit_of(runs, plan.expected)


def _bisect(request: Request, plan: Plan, bench: Workbench, times: int, json_file: Path | None) -> int:
    import dataclasses

    from harness.bisect_request import search
    from harness.report.replaying import bisected_json, bisected_text
    from harness.report.result import to_text

    with new_folder(bench.runs, f"bisect-{plan.scenario.name}"[:80]) as folder:
        found = search(request, plan, dataclasses.replace(bench, runs=folder), times, click.echo)
    click.echo(bisected_text(found))
    if json_file:
        write(json_file, to_text(bisected_json(found)))
    if not found.problem and found.first_bad is None:
        return EXIT_INCONCLUSIVE
    return _BISECT_EXITS[found.problem]
