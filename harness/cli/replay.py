"""`harness replay`: the case of a replay file once more."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.cli.common import exit_code, make_writable, no_folder
from harness.cli.outputs import Outputs, output_options
from harness.errors import UsageError


@click.command(name="replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where the new run directory goes."
)
@output_options
def replay(file: Path, out: Path, outputs: Outputs) -> int:
    """Runs the case of a replay file (a plan.toml, or the run directory that holds it) once more.

    Example: harness replay runs/test_x/plan.toml
    """
    from harness.case import Workbench, run_case
    from harness.plan import read_plan, versions
    from harness.report.checked import case_document
    from harness.report.document import now
    from harness.report.text import render
    from harness.session import Session
    from harness.store import read_baseline

    began = now()
    problems = [*no_folder(out), *outputs.problems(out)]
    try:
        plan = read_plan(file)
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    for name, recorded in plan.versions.items():
        if versions().get(name) != recorded:
            click.echo(f"note: recorded with {name} {recorded}, repeated with {versions().get(name)}", err=True)
    make_writable(out)
    session = Session.new()
    try:
        verdict, directory = run_case(plan.scenario, Workbench(out.resolve(), out.resolve() / "baselines", session.warm()))
    finally:
        session.close()
    click.echo(render(verdict, directory.path))
    found = [(verdict, directory.path)]
    document = case_document(["harness", *sys.argv[1:]], plan.scenario, read_baseline(directory.golden), found, began)
    outputs.write(document, [directory.path])
    return exit_code(verdict)
