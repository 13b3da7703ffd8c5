"""`harness report`: stored results read, shown, put together and packed; nothing is run."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.common import EXITS, no_place_for
from harness.cli.outputs import Outputs, output_options
from harness.errors import UsageError


@click.command(name="report")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="RUN_OR_FOLDER...")
@output_options
@click.option(
    "--history", type=click.Path(path_type=Path), default=None, metavar="FILE", help="Nights so far; this one is added."
)
@click.option("--merge", is_flag=True, help="Put the results of several machines (--shard) together, into the folder of --out.")
@click.option("--out", type=click.Path(path_type=Path), default=None, metavar="DIR", help="Where --merge writes.")
@click.option("--pack", type=click.Path(path_type=Path), default=None, metavar="FILE", help="Also pack the evidence (.tar.gz).")
@click.option("--artifact-limit", default=None, metavar="SIZE", help="Most bytes of --pack or --merge. [default: 200MB]")
@click.option("--runs", default="12", show_default=True, metavar="N", help="Runs whose plots stand in the page of --html.")
def report(
    folders: tuple[Path, ...],
    outputs: Outputs,
    history: Path | None,
    merge: bool,
    out: Path | None,
    pack: Path | None,
    artifact_limit: str | None,
    runs: str,
) -> int:
    """Shows stored results: run directories, folders that hold any, and results that --json has written.

    Nothing is run; what has no verdict yet is judged from its logs. Exit code: 0 all PASS, 1 a FAIL, 2 wrong usage, 3 something
    could not be judged.

    Example: harness report runs --html report.html
    """
    from harness.report.saving import Wanted, save_all
    from harness.report.summary import text

    wanted = Wanted.parse(folders, history=history, merge=merge, out=out, pack=pack, limit=artifact_limit, runs=runs)
    problems = [*wanted.problems, *outputs.problems(out), *no_place_for(history, out), *no_place_for(pack, out)]
    if problems:
        raise UsageError(problems)
    found = save_all(wanted)
    click.echo(text(found.document))
    for line in found.said:
        click.echo(line, err=True)
    outputs.write(found.document, folders, found.nights, wanted.num_runs)
    return EXITS[found.document.outcome]
