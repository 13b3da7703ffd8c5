"""`harness bench`: what the harness costs and how well it judges."""

from __future__ import annotations

import os
from pathlib import Path

import click

from harness.cli.common import no_place_for, write
from harness.errors import EXIT_FAIL, EXIT_PASS

_LEAST_NAMED = 0.95


@click.command(name="bench")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the figures as JSON.")
@click.option("--cases", default="10", show_default=True, help="Warm cases to time.")
@click.option("--cold-cases", default="2", show_default=True, help="Cases through torchrun to time.")
@click.option("--save-width", default="896", show_default=True, help="Width of the model that is saved (896: 232 MB).")
@click.option("--states", default=None, help="Crash states of a save to explore. [default: all]")
@click.option("--defects", is_flag=True, help="Instead: run every planted defect and the healthy jobs, print the two rates.")
@click.option(
    "--kinds", is_flag=True, help="Instead: run the trainers that have a kind of the reported defects, print rates per kind."
)
@click.option("--everything", is_flag=True, help="With --defects: all combinations of healthy settings (an hour or more).")
def bench(
    json_file: Path | None,
    cases: str,
    cold_cases: str,
    save_width: str,
    states: str | None,
    defects: bool,
    kinds: bool,
    everything: bool,
) -> int:
    """Measures this machine: cases per minute warm and through torchrun, the gate's cost, memory per rank. Prints ratios.

    With --defects it measures the judge: how many planted defects it names rightly, and its false alarms. The exit code is
    then 1 if either is not perfect. With --kinds it does so on small scripts as people write them, which lie in a checkout of the
    project (tests/quality/kinds); the exit code is 1 if one is not found, more than 5 % are misnamed, or there is a false alarm.

    Example: harness bench --json bench.json
    """
    from harness.bench import Request, defect_rates, measure, to_json
    from harness.report.tables import bench_table

    problems = no_place_for(json_file)
    if everything and not defects:
        problems.append("--everything is for --defects; expected --defects with it")
    if kinds and defects:
        problems.append("found --kinds and --defects; expected one of them")
    request = Request.parse(cases, cold_cases, save_width, states, problems)

    if kinds:
        return _kinds(json_file)
    if defects:
        figures = defect_rates(everything, lambda text: click.echo(text, err=True), _at_a_time())
        rates = figures["defects"]
        click.echo(f"named correctly / planted: {rates['named']} / {rates['planted']}")
        click.echo(f"false alarms / healthy:    {rates['false_alarms']} / {rates['healthy']}")
        if json_file:
            write(json_file, to_json(figures))
        return EXIT_PASS if rates["named"] == rates["planted"] and not rates["false_alarms"] else EXIT_FAIL

    figures = measure(
        request.cases, request.cold_cases, request.save_width, request.states, lambda text: click.echo(text, err=True)
    )
    bench_table(figures)
    if json_file:
        write(json_file, to_json(figures))
    return EXIT_PASS


def _at_a_time() -> int:
    """How many cases: one more than there are processors, since each waits for files now and then."""
    return (os.cpu_count() or 1) + 1


def _kinds(json_file: Path | None) -> int:
    from harness.bench import kind_rates, to_json
    from harness.kinds import FOLDER
    from harness.report.tables import kinds_table

    figures = kind_rates(lambda text: click.echo(text, err=True), FOLDER, _at_a_time())
    kinds_table(figures)
    if json_file:
        write(json_file, to_json(figures))
    rates = figures["kinds"]
    good = rates["detected"] == rates["planted"] and rates["named"] >= _LEAST_NAMED * rates["planted"]
    return EXIT_PASS if good and not rates["false_alarms"] else EXIT_FAIL
