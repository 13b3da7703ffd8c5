"""`harness chaos`: random schedules of faults until a budget ends."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harness.cli.common import make_writable, new_folder, no_folder, no_place_for, write
from harness.errors import EXIT_HARNESS, UsageError


@click.command(name="chaos")
@click.option("--reference", "format", default=None, metavar="FORMAT", help="The reference trainer, saving in this format.")
@click.option("--set", "set", multiple=True, metavar="NAME=VALUE", help="A setting of the reference trainer.")
@click.option("--defect", multiple=True, metavar="NAME", help="Plant a defect in the reference trainer, to see it found.")
@click.option("--world-size", default=None, help="Number of ranks. [default: what the command says; 2 for --reference]")
@click.option(
    "--world-sizes", default=None, metavar="LIST", help="Other numbers of ranks to restart on. [default: those that fit]"
)
@click.option("--steps", default=None, help="Batches of the whole job. [default: 8 for --reference]")
@click.option("--budget", default="30m", show_default=True, help="It ends after so long: 90s, 10m, 8h.")
@click.option("--seed", default=None, help="Of all that is drawn. [default: another one each time; it is printed]")
@click.option("--shard", default="1/1", metavar="I/N", help="Draw only part I of N, each on a machine of its own.")
@click.option("-x", "--exit-first", is_flag=True, default=False, help="End with the first failure, once it was made smaller.")
@click.option("--cases", default=None, help="So many cases at most.")
@click.option("--faults", default=None, metavar="LIST", help="Which families are drawn. [default: all but power-cut]")
@click.option("--corpus", type=click.Path(path_type=Path), default=None, help="Folder of what earlier nights have found.")
@click.option("--canary/--no-canary", default=True, show_default=True, help="First see that a planted defect fails.")
@click.option("--shrink/--no-shrink", default=True, show_default=True, help="Make the first failure of each kind smaller.")
@click.option("--jobs", default=None, help="Cases at a time. [default: one more than the processors]")
@click.option(
    "--launch", type=click.Choice(["auto", "warm", "cold"]), default="auto", show_default=True, help="As of harness check."
)
@click.option("--resume-command", default=None, metavar="TEXT", help="What is run after the first launch, where it is another.")
@click.option("--tolerance", default=None, help="Largest difference of a loss that is taken for equal. [default: 1e-4]")
@click.option("--python", default=None, metavar="PATH", help="The interpreter that stands for {python} in the command.")
@click.option("--loss-log", default=None, metavar="FILE", help="Read losses from this file (-: from what is printed).")
@click.option("--loss-regex", default=None, metavar="REGEX", help="Which lines say one: groups step and loss.")
@click.option(
    "--continue", "continued", is_flag=False, flag_value="", default=None, metavar="[DIR]",
    help="Go on with a night that was killed: the newest below --out, or this one.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where run directories go.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Also write the result here as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def chaos(out: Path, json_file: Path | None, continued: str | None, **options: Any) -> int:
    """Attacks a job with random schedules of several faults over several attempts, until the budget ends.

    The job is the reference trainer, or a COMMAND as of harness check. What is drawn is printed before it happens; a failure is
    repeated, made smaller, and kept in the corpus, with which the next night begins. A night that was killed goes on with
    --continue. Exit code: 0 nothing found, 1 something, 2 wrong usage, 3 where nothing could be judged, 4 where the harness
    itself is broken.

    Example: harness chaos --budget 30m --corpus corpus -- torchrun --nproc-per-node 2 train.py --out {ckpt}
    """
    from harness.case import Workbench
    from harness.chaos.journal import find_unfinished
    from harness.chaos.night import run_night
    from harness.chaos.request import parse_request, request_of
    from harness.report.chaos import chaos_json, chaos_text
    from harness.report.progress import Ticker
    from harness.report.result import to_text
    from harness.session import Session

    problems = [*no_folder(out), *no_place_for(json_file, out)]
    if continued is not None and (said := [*problems, *_said_again()]):
        raise UsageError(said)
    unfinished = find_unfinished(Path(continued) if continued else out) if continued is not None else None
    request = request_of(unfinished) if unfinished else parse_request(options, problems)
    make_writable(out)
    session, folder = Session.new(), out
    try:
        bench = Workbench(out.resolve(), out.resolve() / "baselines", session.warm())
        with Ticker() as ticker:
            ticker.part(f"{request.scenario.name}, {request.budget_s:g} s, {request.jobs} at a time")
            if unfinished:
                folder = unfinished.folder.resolve()
                found = run_night(request, bench, folder, ticker.say, ticker.tick, unfinished)
            else:
                with new_folder(out.resolve(), request.scenario.name) as folder:
                    found = run_night(request, bench, folder, ticker.say, ticker.tick)
    except KeyboardInterrupt:
        click.echo(
            f"harness: what was found so far is kept; harness chaos --continue {shlex.quote(str(folder))} goes on", err=True
        )
        raise
    finally:
        session.close()
    click.echo(chaos_text(found))  # before it is written: a disk may be full
    text = to_text(chaos_json(["harness", *sys.argv[1:]], found))
    code = found.exit_code
    for file in (found.folder / "result.json", *([json_file] if json_file else [])):
        try:
            write(file, text)
        except UsageError as error:
            click.echo(f"harness: {error}; what was found stands above, and in {found.folder}", err=True)
            code = code or EXIT_HARNESS
    return code


def _said_again() -> list[str]:
    """What is said beside --continue and would not be heard: the night goes on as it was asked for."""
    context = click.get_current_context()
    given = [
        "the command" if parameter.name == "command" else parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in ("continued", "out", "json_file")
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if not given:
        return []
    words = ", ".join(given)
    return [
        f"--continue: the night goes on as it was asked for, and {words} would change nothing; expected only --out and --json"
    ]
