"""`harness interval`: how often to save."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import no_place_for, write
from harness.errors import EXIT_PASS, UsageError


@click.command(name="interval")
@click.option("--format", default="sharded", show_default=True, help="Checkpoint format, as in the README.")
@click.option("--ranks", default="2", show_default=True, help="Ranks of the job whose saves are timed.")
@click.option("--machine-mtbf", default=None, help="Mean time between failures of one machine, in hours. [default: 6300]")
@click.option("--machines", default="1", show_default=True, help="Machines of the job; any one that fails stops it.")
@click.option("--save-cost", default=None, help="Cost of one save, in seconds, instead of measuring it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the figures as JSON.")
def interval(
    format: str, ranks: str, machine_mtbf: str | None, machines: str, save_cost: str | None, json_file: Path | None
) -> int:
    """Says how often to save: Young's formula, with the cost of a save measured here, beside a simulation.

    The default of --machine-mtbf is that of the Llama 3 report: 419 unexpected interruptions of 2,048 machines in 54 days.
    With --save-cost nothing is measured, and --format and --ranks are only checked.

    Example: harness interval --format sharded --machines 128
    """
    from harness.interval import DEFAULT_MACHINE_MTBF_H, Request, report, to_json
    from harness.report.tables import interval_table

    problems = no_place_for(json_file)
    try:
        request = Request.parse(
            format, ranks, str(DEFAULT_MACHINE_MTBF_H) if machine_mtbf is None else machine_mtbf, machines, save_cost
        )
    except UsageError as error:
        raise UsageError([*error.problems, *problems]) from None
    if problems:
        raise UsageError(problems)
    figures = report(request, lambda text: click.echo(text, err=True))
    interval_table(figures)
    if json_file:
        write(json_file, to_json(figures))
    return EXIT_PASS
