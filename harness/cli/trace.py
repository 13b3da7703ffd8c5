"""`harness trace`: what a job writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli.common import make_writable, new_folder, no_folder, no_place_for, write
from harness.errors import EXIT_INCONCLUSIVE, EXIT_PASS


@click.command(name="trace")
@click.option("--reference", "format", default=None, metavar="FORMAT", help="Trace the reference trainer, saving in this format.")
@click.option("--world-size", default=None, help="Number of ranks. [default: what the command says; 2 for --reference]")
@click.option("--steps", default=None, help="Batches of the whole job. [default: 3 for --reference]")
@click.option("--once", is_flag=True, help="Run the job once only: nothing is learnt of which order is enforced.")
@click.option("--defect", multiple=True, metavar="NAME", help="Plant a defect in the reference trainer.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where run directories go.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the trace as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def trace_command(json_file: Path | None, out: Path, once: bool, **options: Any) -> int:
    """Runs a job and prints what it wrote: every operation of all ranks in order, save by save, and its crash points.

    It says what was not durable when each save returned, and which ranks' operations are ordered by nothing but luck (for that
    the job is run once more per writing rank, with that rank always last). Any COMMAND can be traced; {ckpt} in it is the
    checkpoint directory.

    Example: harness trace -- torchrun --nproc-per-node 2 train.py --out {ckpt}
    """
    from harness.case import Workbench
    from harness.check_request import parse_trace_request
    from harness.report.result import to_text
    from harness.report.tracing import trace_json, trace_text
    from harness.session import Session
    from harness.tracing import trace_job

    scenario = parse_trace_request(options, [*no_folder(out), *no_place_for(json_file, out)])
    make_writable(out)
    session = Session.new()
    try:
        bench = Workbench(out.resolve(), out.resolve() / "baselines", session.warm())
        with new_folder(out.resolve(), scenario.name) as folder:
            found = trace_job(scenario, bench, folder, once=once)
    finally:
        session.close()
    click.echo(trace_text(found))
    if json_file:
        write(json_file, to_text(trace_json(found)))
    return EXIT_INCONCLUSIVE if found.inconclusive else EXIT_PASS
